from coldplate.v1 import device_pb2 as _device_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ApplyLimitsRequest(_message.Message):
    __slots__ = ("governor", "epoch", "seq", "ttl", "devices")
    GOVERNOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    governor: str
    epoch: int
    seq: int
    ttl: _duration_pb2.Duration
    devices: _containers.RepeatedCompositeFieldContainer[DeviceDirective]
    def __init__(self, governor: _Optional[str] = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[DeviceDirective, _Mapping]]] = ...) -> None: ...

class DeviceDirective(_message.Message):
    __slots__ = ("device", "limits", "mode", "reasons", "readings", "explanation", "retry_after")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    device: str
    limits: _device_pb2.DeviceLimits
    mode: str
    reasons: _containers.RepeatedCompositeFieldContainer[_device_pb2.Reason]
    readings: _device_pb2.Readings
    explanation: _device_pb2.Explanation
    retry_after: _duration_pb2.Duration
    def __init__(self, device: _Optional[str] = ..., limits: _Optional[_Union[_device_pb2.DeviceLimits, _Mapping]] = ..., mode: _Optional[str] = ..., reasons: _Optional[_Iterable[_Union[_device_pb2.Reason, _Mapping]]] = ..., readings: _Optional[_Union[_device_pb2.Readings, _Mapping]] = ..., explanation: _Optional[_Union[_device_pb2.Explanation, _Mapping]] = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ApplyLimitsResponse(_message.Message):
    __slots__ = ("devices", "load", "unknown_devices")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[_device_pb2.DeviceStatus]
    load: _device_pb2.Load
    unknown_devices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, devices: _Optional[_Iterable[_Union[_device_pb2.DeviceStatus, _Mapping]]] = ..., load: _Optional[_Union[_device_pb2.Load, _Mapping]] = ..., unknown_devices: _Optional[_Iterable[str]] = ...) -> None: ...
