from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LimitSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIMIT_SOURCE_UNSPECIFIED: _ClassVar[LimitSource]
    LIMIT_SOURCE_OPERATOR: _ClassVar[LimitSource]
    LIMIT_SOURCE_GOVERNOR: _ClassVar[LimitSource]
    LIMIT_SOURCE_SAFE: _ClassVar[LimitSource]
    LIMIT_SOURCE_WORKER: _ClassVar[LimitSource]

class GovernorState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GOVERNOR_STATE_UNSPECIFIED: _ClassVar[GovernorState]
    GOVERNOR_STATE_UNGOVERNED: _ClassVar[GovernorState]
    GOVERNOR_STATE_GOVERNED: _ClassVar[GovernorState]
    GOVERNOR_STATE_LOST: _ClassVar[GovernorState]

class DeviceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_STATE_UNSPECIFIED: _ClassVar[DeviceState]
    DEVICE_STATE_LOADING: _ClassVar[DeviceState]
    DEVICE_STATE_SERVING: _ClassVar[DeviceState]
    DEVICE_STATE_THROTTLED: _ClassVar[DeviceState]
    DEVICE_STATE_CLOSED: _ClassVar[DeviceState]
    DEVICE_STATE_DRAINING: _ClassVar[DeviceState]
    DEVICE_STATE_LOST: _ClassVar[DeviceState]
    DEVICE_STATE_FAILED: _ClassVar[DeviceState]
LIMIT_SOURCE_UNSPECIFIED: LimitSource
LIMIT_SOURCE_OPERATOR: LimitSource
LIMIT_SOURCE_GOVERNOR: LimitSource
LIMIT_SOURCE_SAFE: LimitSource
LIMIT_SOURCE_WORKER: LimitSource
GOVERNOR_STATE_UNSPECIFIED: GovernorState
GOVERNOR_STATE_UNGOVERNED: GovernorState
GOVERNOR_STATE_GOVERNED: GovernorState
GOVERNOR_STATE_LOST: GovernorState
DEVICE_STATE_UNSPECIFIED: DeviceState
DEVICE_STATE_LOADING: DeviceState
DEVICE_STATE_SERVING: DeviceState
DEVICE_STATE_THROTTLED: DeviceState
DEVICE_STATE_CLOSED: DeviceState
DEVICE_STATE_DRAINING: DeviceState
DEVICE_STATE_LOST: DeviceState
DEVICE_STATE_FAILED: DeviceState

class DeviceLimits(_message.Message):
    __slots__ = ("duty", "max_batch", "max_prefill_tokens", "max_new_tokens", "max_reasoning_tokens", "max_context_tokens", "max_encoder_tokens", "min_priority", "admit", "cpu_share")
    DUTY_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    MAX_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_ENCODER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ADMIT_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    duty: float
    max_batch: int
    max_prefill_tokens: int
    max_new_tokens: int
    max_reasoning_tokens: int
    max_context_tokens: int
    max_encoder_tokens: int
    min_priority: int
    admit: bool
    cpu_share: float
    def __init__(self, duty: _Optional[float] = ..., max_batch: _Optional[int] = ..., max_prefill_tokens: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., max_reasoning_tokens: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., max_encoder_tokens: _Optional[int] = ..., min_priority: _Optional[int] = ..., admit: bool = ..., cpu_share: _Optional[float] = ...) -> None: ...

class LimitBinding(_message.Message):
    __slots__ = ("limit", "source", "age")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    limit: str
    source: LimitSource
    age: _duration_pb2.Duration
    def __init__(self, limit: _Optional[str] = ..., source: _Optional[_Union[LimitSource, str]] = ..., age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GovernorStatus(_message.Message):
    __slots__ = ("state", "name", "epoch", "lease_left", "since_change")
    STATE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_FIELD_NUMBER: _ClassVar[int]
    SINCE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    state: GovernorState
    name: str
    epoch: int
    lease_left: _duration_pb2.Duration
    since_change: _duration_pb2.Duration
    def __init__(self, state: _Optional[_Union[GovernorState, str]] = ..., name: _Optional[str] = ..., epoch: _Optional[int] = ..., lease_left: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., since_change: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Readings(_message.Message):
    __slots__ = ("temperature_celsius", "power_watts", "utilization_percent", "memory_used_bytes", "memory_total_bytes", "frequency_mhz", "rated_frequency_mhz", "memory_pressure_percent", "cpu_pressure_percent", "age", "sources", "lost", "board_temperature_celsius", "memory_temperature_celsius", "card_power_watts", "firmware_limit_celsius", "reset_celsius", "memory_bandwidth_percent", "health", "throttle_cause", "error_codes", "unusable", "suspect")
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_MHZ_FIELD_NUMBER: _ClassVar[int]
    RATED_FREQUENCY_MHZ_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PRESSURE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    CPU_PRESSURE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    BOARD_TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    CARD_POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    FIRMWARE_LIMIT_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    RESET_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BANDWIDTH_PERCENT_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_CAUSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODES_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    temperature_celsius: float
    power_watts: float
    utilization_percent: float
    memory_used_bytes: float
    memory_total_bytes: float
    frequency_mhz: float
    rated_frequency_mhz: float
    memory_pressure_percent: float
    cpu_pressure_percent: float
    age: _duration_pb2.Duration
    sources: _containers.RepeatedScalarFieldContainer[str]
    lost: _containers.RepeatedScalarFieldContainer[str]
    board_temperature_celsius: float
    memory_temperature_celsius: float
    card_power_watts: float
    firmware_limit_celsius: float
    reset_celsius: float
    memory_bandwidth_percent: float
    health: str
    throttle_cause: str
    error_codes: _containers.RepeatedScalarFieldContainer[str]
    unusable: _containers.RepeatedScalarFieldContainer[str]
    suspect: str
    def __init__(self, temperature_celsius: _Optional[float] = ..., power_watts: _Optional[float] = ..., utilization_percent: _Optional[float] = ..., memory_used_bytes: _Optional[float] = ..., memory_total_bytes: _Optional[float] = ..., frequency_mhz: _Optional[float] = ..., rated_frequency_mhz: _Optional[float] = ..., memory_pressure_percent: _Optional[float] = ..., cpu_pressure_percent: _Optional[float] = ..., age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., sources: _Optional[_Iterable[str]] = ..., lost: _Optional[_Iterable[str]] = ..., board_temperature_celsius: _Optional[float] = ..., memory_temperature_celsius: _Optional[float] = ..., card_power_watts: _Optional[float] = ..., firmware_limit_celsius: _Optional[float] = ..., reset_celsius: _Optional[float] = ..., memory_bandwidth_percent: _Optional[float] = ..., health: _Optional[str] = ..., throttle_cause: _Optional[str] = ..., error_codes: _Optional[_Iterable[str]] = ..., unusable: _Optional[_Iterable[str]] = ..., suspect: _Optional[str] = ...) -> None: ...

class Reason(_message.Message):
    __slots__ = ("code", "text")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ControlTerms(_message.Message):
    __slots__ = ("target_celsius", "filtered_celsius", "error_celsius", "p", "i", "d", "feed_forward", "raw", "slewed", "applied", "predicted_celsius", "rise_celsius_per_s", "seconds_to_limit")
    TARGET_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    FILTERED_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    P_FIELD_NUMBER: _ClassVar[int]
    I_FIELD_NUMBER: _ClassVar[int]
    D_FIELD_NUMBER: _ClassVar[int]
    FEED_FORWARD_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    SLEWED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    RISE_CELSIUS_PER_S_FIELD_NUMBER: _ClassVar[int]
    SECONDS_TO_LIMIT_FIELD_NUMBER: _ClassVar[int]
    target_celsius: float
    filtered_celsius: float
    error_celsius: float
    p: float
    i: float
    d: float
    feed_forward: float
    raw: float
    slewed: float
    applied: float
    predicted_celsius: float
    rise_celsius_per_s: float
    seconds_to_limit: float
    def __init__(self, target_celsius: _Optional[float] = ..., filtered_celsius: _Optional[float] = ..., error_celsius: _Optional[float] = ..., p: _Optional[float] = ..., i: _Optional[float] = ..., d: _Optional[float] = ..., feed_forward: _Optional[float] = ..., raw: _Optional[float] = ..., slewed: _Optional[float] = ..., applied: _Optional[float] = ..., predicted_celsius: _Optional[float] = ..., rise_celsius_per_s: _Optional[float] = ..., seconds_to_limit: _Optional[float] = ...) -> None: ...

class LimitChange(_message.Message):
    __slots__ = ("limit", "old", "new")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    limit: str
    old: float
    new: float
    def __init__(self, limit: _Optional[str] = ..., old: _Optional[float] = ..., new: _Optional[float] = ...) -> None: ...

class GovernorChange(_message.Message):
    __slots__ = ("age", "mode_from", "mode_to", "binding_from", "binding_to", "limits", "rungs_from", "rungs_to", "rule", "text")
    AGE_FIELD_NUMBER: _ClassVar[int]
    MODE_FROM_FIELD_NUMBER: _ClassVar[int]
    MODE_TO_FIELD_NUMBER: _ClassVar[int]
    BINDING_FROM_FIELD_NUMBER: _ClassVar[int]
    BINDING_TO_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    RUNGS_FROM_FIELD_NUMBER: _ClassVar[int]
    RUNGS_TO_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    age: _duration_pb2.Duration
    mode_from: str
    mode_to: str
    binding_from: str
    binding_to: str
    limits: _containers.RepeatedCompositeFieldContainer[LimitChange]
    rungs_from: _containers.RepeatedScalarFieldContainer[str]
    rungs_to: _containers.RepeatedScalarFieldContainer[str]
    rule: str
    text: str
    def __init__(self, age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., mode_from: _Optional[str] = ..., mode_to: _Optional[str] = ..., binding_from: _Optional[str] = ..., binding_to: _Optional[str] = ..., limits: _Optional[_Iterable[_Union[LimitChange, _Mapping]]] = ..., rungs_from: _Optional[_Iterable[str]] = ..., rungs_to: _Optional[_Iterable[str]] = ..., rule: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("binding", "binding_for", "mode_for", "terms", "rungs", "rule", "dwell_left", "clears", "changes")
    BINDING_FIELD_NUMBER: _ClassVar[int]
    BINDING_FOR_FIELD_NUMBER: _ClassVar[int]
    MODE_FOR_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    RUNGS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    DWELL_LEFT_FIELD_NUMBER: _ClassVar[int]
    CLEARS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    binding: str
    binding_for: _duration_pb2.Duration
    mode_for: _duration_pb2.Duration
    terms: ControlTerms
    rungs: _containers.RepeatedScalarFieldContainer[str]
    rule: str
    dwell_left: _duration_pb2.Duration
    clears: _containers.RepeatedScalarFieldContainer[str]
    changes: _containers.RepeatedCompositeFieldContainer[GovernorChange]
    def __init__(self, binding: _Optional[str] = ..., binding_for: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., mode_for: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., terms: _Optional[_Union[ControlTerms, _Mapping]] = ..., rungs: _Optional[_Iterable[str]] = ..., rule: _Optional[str] = ..., dwell_left: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., clears: _Optional[_Iterable[str]] = ..., changes: _Optional[_Iterable[_Union[GovernorChange, _Mapping]]] = ...) -> None: ...

class StepTimes(_message.Message):
    __slots__ = ("steps", "schedule", "host_prep", "copy", "device", "sample", "idle", "paced")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    HOST_PREP_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    PACED_FIELD_NUMBER: _ClassVar[int]
    steps: int
    schedule: float
    host_prep: float
    copy: float
    device: float
    sample: float
    idle: float
    paced: float
    def __init__(self, steps: _Optional[int] = ..., schedule: _Optional[float] = ..., host_prep: _Optional[float] = ..., copy: _Optional[float] = ..., device: _Optional[float] = ..., sample: _Optional[float] = ..., idle: _Optional[float] = ..., paced: _Optional[float] = ...) -> None: ...

class DeviceStatus(_message.Message):
    __slots__ = ("device", "worker", "model", "state", "detail", "since_change", "simulated", "readings", "limits", "bindings", "governor_mode", "reasons", "running", "pending", "kv_tokens_used", "kv_tokens_total", "tokens_per_second", "step_times", "restarts", "chip", "levers", "threads", "kv_tokens_cached", "totals", "queued", "queue_wait", "busy_share", "prefill_tokens_per_second", "explanation")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SINCE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    GOVERNOR_MODE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_USED_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    CHIP_FIELD_NUMBER: _ClassVar[int]
    LEVERS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_CACHED_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_WAIT_FIELD_NUMBER: _ClassVar[int]
    BUSY_SHARE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    device: str
    worker: str
    model: str
    state: DeviceState
    detail: str
    since_change: _duration_pb2.Duration
    simulated: bool
    readings: Readings
    limits: DeviceLimits
    bindings: _containers.RepeatedCompositeFieldContainer[LimitBinding]
    governor_mode: str
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    running: int
    pending: int
    kv_tokens_used: int
    kv_tokens_total: int
    tokens_per_second: float
    step_times: StepTimes
    restarts: int
    chip: str
    levers: _containers.RepeatedScalarFieldContainer[str]
    threads: int
    kv_tokens_cached: int
    totals: WorkerTotals
    queued: int
    queue_wait: _duration_pb2.Duration
    busy_share: float
    prefill_tokens_per_second: float
    explanation: Explanation
    def __init__(self, device: _Optional[str] = ..., worker: _Optional[str] = ..., model: _Optional[str] = ..., state: _Optional[_Union[DeviceState, str]] = ..., detail: _Optional[str] = ..., since_change: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., simulated: bool = ..., readings: _Optional[_Union[Readings, _Mapping]] = ..., limits: _Optional[_Union[DeviceLimits, _Mapping]] = ..., bindings: _Optional[_Iterable[_Union[LimitBinding, _Mapping]]] = ..., governor_mode: _Optional[str] = ..., reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ..., running: _Optional[int] = ..., pending: _Optional[int] = ..., kv_tokens_used: _Optional[int] = ..., kv_tokens_total: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., step_times: _Optional[_Union[StepTimes, _Mapping]] = ..., restarts: _Optional[int] = ..., chip: _Optional[str] = ..., levers: _Optional[_Iterable[str]] = ..., threads: _Optional[int] = ..., kv_tokens_cached: _Optional[int] = ..., totals: _Optional[_Union[WorkerTotals, _Mapping]] = ..., queued: _Optional[int] = ..., queue_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., busy_share: _Optional[float] = ..., prefill_tokens_per_second: _Optional[float] = ..., explanation: _Optional[_Union[Explanation, _Mapping]] = ...) -> None: ...

class WorkerTotals(_message.Message):
    __slots__ = ("prefill_tokens", "cached_tokens", "offloaded_tokens", "preemptions", "preempted_tokens", "draft_tokens", "accepted_tokens")
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OFFLOADED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prefill_tokens: int
    cached_tokens: int
    offloaded_tokens: int
    preemptions: int
    preempted_tokens: int
    draft_tokens: int
    accepted_tokens: int
    def __init__(self, prefill_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., offloaded_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., preempted_tokens: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ...) -> None: ...

class ServiceStatus(_message.Message):
    __slots__ = ("devices", "governor", "queued", "running", "draining", "uptime")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    GOVERNOR_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceStatus]
    governor: GovernorStatus
    queued: int
    running: int
    draining: bool
    uptime: _duration_pb2.Duration
    def __init__(self, devices: _Optional[_Iterable[_Union[DeviceStatus, _Mapping]]] = ..., governor: _Optional[_Union[GovernorStatus, _Mapping]] = ..., queued: _Optional[int] = ..., running: _Optional[int] = ..., draining: bool = ..., uptime: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: str
    def __init__(self, device: _Optional[str] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: ServiceStatus
    def __init__(self, status: _Optional[_Union[ServiceStatus, _Mapping]] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ("device", "min_interval")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MIN_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    device: str
    min_interval: _duration_pb2.Duration
    def __init__(self, device: _Optional[str] = ..., min_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: ServiceStatus
    def __init__(self, status: _Optional[_Union[ServiceStatus, _Mapping]] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Load(_message.Message):
    __slots__ = ("running", "queued", "queue_limit", "queue_wait", "kv_utilization", "tokens_per_second", "utilization", "accepting", "classes")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_WAIT_FIELD_NUMBER: _ClassVar[int]
    KV_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTING_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    running: int
    queued: int
    queue_limit: int
    queue_wait: _duration_pb2.Duration
    kv_utilization: float
    tokens_per_second: float
    utilization: float
    accepting: bool
    classes: _containers.RepeatedCompositeFieldContainer[ClassLoad]
    def __init__(self, running: _Optional[int] = ..., queued: _Optional[int] = ..., queue_limit: _Optional[int] = ..., queue_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., kv_utilization: _Optional[float] = ..., tokens_per_second: _Optional[float] = ..., utilization: _Optional[float] = ..., accepting: bool = ..., classes: _Optional[_Iterable[_Union[ClassLoad, _Mapping]]] = ...) -> None: ...

class ClassLoad(_message.Message):
    __slots__ = ("model", "priority", "waiting", "tenants_waiting", "waiting_tokens", "in_flight_tokens", "in_flight_limit_tokens", "expected_wait", "queue_wait", "wait_target", "refused", "shed")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    TENANTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_LIMIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WAIT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_WAIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_TARGET_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SHED_FIELD_NUMBER: _ClassVar[int]
    model: str
    priority: int
    waiting: int
    tenants_waiting: int
    waiting_tokens: int
    in_flight_tokens: int
    in_flight_limit_tokens: int
    expected_wait: _duration_pb2.Duration
    queue_wait: _duration_pb2.Duration
    wait_target: _duration_pb2.Duration
    refused: int
    shed: int
    def __init__(self, model: _Optional[str] = ..., priority: _Optional[int] = ..., waiting: _Optional[int] = ..., tenants_waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., in_flight_tokens: _Optional[int] = ..., in_flight_limit_tokens: _Optional[int] = ..., expected_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., queue_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., wait_target: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., refused: _Optional[int] = ..., shed: _Optional[int] = ...) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: Load
    def __init__(self, load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...
