from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_LOADING: _ClassVar[ModelState]
    MODEL_STATE_AVAILABLE: _ClassVar[ModelState]
    MODEL_STATE_UNLOADING: _ClassVar[ModelState]
    MODEL_STATE_UNLOADED: _ClassVar[ModelState]
    MODEL_STATE_FAILED: _ClassVar[ModelState]
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_AVAILABLE: ModelState
MODEL_STATE_UNLOADING: ModelState
MODEL_STATE_UNLOADED: ModelState
MODEL_STATE_FAILED: ModelState

class Model(_message.Message):
    __slots__ = ("name", "revision", "state", "state_detail", "architecture", "parameter_count", "vocabulary_size", "max_context_tokens", "has_chat_template", "end_of_text_token_ids", "replicas")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_DETAIL_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_COUNT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    END_OF_TEXT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    name: str
    revision: str
    state: ModelState
    state_detail: str
    architecture: str
    parameter_count: int
    vocabulary_size: int
    max_context_tokens: int
    has_chat_template: bool
    end_of_text_token_ids: _containers.RepeatedScalarFieldContainer[int]
    replicas: _containers.RepeatedCompositeFieldContainer[ModelReplica]
    def __init__(self, name: _Optional[str] = ..., revision: _Optional[str] = ..., state: _Optional[_Union[ModelState, str]] = ..., state_detail: _Optional[str] = ..., architecture: _Optional[str] = ..., parameter_count: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., has_chat_template: bool = ..., end_of_text_token_ids: _Optional[_Iterable[int]] = ..., replicas: _Optional[_Iterable[_Union[ModelReplica, _Mapping]]] = ...) -> None: ...

class ModelReplica(_message.Message):
    __slots__ = ("worker", "devices", "state", "dtype", "quantization", "max_num_seqs", "kv_cache_tokens", "load_time", "load_phases", "state_detail", "engine_settings", "weight_bytes", "kv_cache_bytes", "features")
    class EngineSettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOAD_TIME_FIELD_NUMBER: _ClassVar[int]
    LOAD_PHASES_FIELD_NUMBER: _ClassVar[int]
    STATE_DETAIL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    state: ModelState
    dtype: str
    quantization: str
    max_num_seqs: int
    kv_cache_tokens: int
    load_time: _duration_pb2.Duration
    load_phases: _containers.RepeatedCompositeFieldContainer[LoadPhase]
    state_detail: str
    engine_settings: _containers.ScalarMap[str, str]
    weight_bytes: int
    kv_cache_bytes: int
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, worker: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[ModelState, str]] = ..., dtype: _Optional[str] = ..., quantization: _Optional[str] = ..., max_num_seqs: _Optional[int] = ..., kv_cache_tokens: _Optional[int] = ..., load_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., load_phases: _Optional[_Iterable[_Union[LoadPhase, _Mapping]]] = ..., state_detail: _Optional[str] = ..., engine_settings: _Optional[_Mapping[str, str]] = ..., weight_bytes: _Optional[int] = ..., kv_cache_bytes: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class LoadPhase(_message.Message):
    __slots__ = ("name", "time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    time: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...
