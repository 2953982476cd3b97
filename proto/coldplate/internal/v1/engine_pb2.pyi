from coldplate.v1 import device_pb2 as _device_pb2
from coldplate.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StopCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_CAUSE_UNSPECIFIED: _ClassVar[StopCause]
    STOP_CAUSE_STOP_TOKEN: _ClassVar[StopCause]
    STOP_CAUSE_MAX_TOKENS: _ClassVar[StopCause]
    STOP_CAUSE_CONTEXT_FULL: _ClassVar[StopCause]
    STOP_CAUSE_CANCELLED: _ClassVar[StopCause]
    STOP_CAUSE_ERROR: _ClassVar[StopCause]

class EngineError(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_ERROR_UNSPECIFIED: _ClassVar[EngineError]
    ENGINE_ERROR_NON_FINITE_LOGITS: _ClassVar[EngineError]
    ENGINE_ERROR_OUT_OF_MEMORY: _ClassVar[EngineError]
    ENGINE_ERROR_UNSATISFIABLE: _ClassVar[EngineError]
    ENGINE_ERROR_DEVICE: _ClassVar[EngineError]
    ENGINE_ERROR_REFUSED: _ClassVar[EngineError]
    ENGINE_ERROR_BAD_CONSTRAINT: _ClassVar[EngineError]
STOP_CAUSE_UNSPECIFIED: StopCause
STOP_CAUSE_STOP_TOKEN: StopCause
STOP_CAUSE_MAX_TOKENS: StopCause
STOP_CAUSE_CONTEXT_FULL: StopCause
STOP_CAUSE_CANCELLED: StopCause
STOP_CAUSE_ERROR: StopCause
ENGINE_ERROR_UNSPECIFIED: EngineError
ENGINE_ERROR_NON_FINITE_LOGITS: EngineError
ENGINE_ERROR_OUT_OF_MEMORY: EngineError
ENGINE_ERROR_UNSATISFIABLE: EngineError
ENGINE_ERROR_DEVICE: EngineError
ENGINE_ERROR_REFUSED: EngineError
ENGINE_ERROR_BAD_CONSTRAINT: EngineError

class RunRequest(_message.Message):
    __slots__ = ("submit", "cancel", "set_limits", "drain", "shutdown")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    SET_LIMITS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    submit: Submit
    cancel: Cancel
    set_limits: SetLimits
    drain: DrainWorker
    shutdown: Shutdown
    def __init__(self, submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., set_limits: _Optional[_Union[SetLimits, _Mapping]] = ..., drain: _Optional[_Union[DrainWorker, _Mapping]] = ..., shutdown: _Optional[_Union[Shutdown, _Mapping]] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("stream", "request_id", "prompt_token_ids", "emitted_token_ids", "sampling", "max_tokens", "stop_token_ids", "priority", "deadline_ms", "sibling_of", "constraint", "min_tokens", "logprobs", "prompt_logprobs", "thinking", "cache_salt")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    EMITTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    SIBLING_OF_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    stream: int
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    emitted_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: SamplingParams
    max_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    deadline_ms: int
    sibling_of: int
    constraint: Constraint
    min_tokens: int
    logprobs: int
    prompt_logprobs: int
    thinking: Thinking
    cache_salt: str
    def __init__(self, stream: _Optional[int] = ..., request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., emitted_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., max_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., sibling_of: _Optional[int] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ..., min_tokens: _Optional[int] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., thinking: _Optional[_Union[Thinking, _Mapping]] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("json_schema", "regex", "choices", "grammar")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    regex: str
    choices: _generation_pb2.Choices
    grammar: str
    def __init__(self, json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., choices: _Optional[_Union[_generation_pb2.Choices, _Mapping]] = ..., grammar: _Optional[str] = ...) -> None: ...

class Thinking(_message.Message):
    __slots__ = ("start_token_id", "end_token_id", "open", "budget_tokens", "close_token_ids")
    START_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BUDGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    start_token_id: int
    end_token_id: int
    open: bool
    budget_tokens: int
    close_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start_token_id: _Optional[int] = ..., end_token_id: _Optional[int] = ..., open: bool = ..., budget_tokens: _Optional[int] = ..., close_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: int
    def __init__(self, stream: _Optional[int] = ...) -> None: ...

class SetLimits(_message.Message):
    __slots__ = ("seq", "limits")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    limits: _device_pb2.DeviceLimits
    def __init__(self, seq: _Optional[int] = ..., limits: _Optional[_Union[_device_pb2.DeviceLimits, _Mapping]] = ...) -> None: ...

class DrainWorker(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Shutdown(_message.Message):
    __slots__ = ("now",)
    NOW_FIELD_NUMBER: _ClassVar[int]
    now: bool
    def __init__(self, now: bool = ...) -> None: ...

class RunResponse(_message.Message):
    __slots__ = ("loading", "hello", "step")
    LOADING_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    loading: Loading
    hello: Hello
    step: Step
    def __init__(self, loading: _Optional[_Union[Loading, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ...) -> None: ...

class Loading(_message.Message):
    __slots__ = ("phase", "progress")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    phase: str
    progress: float
    def __init__(self, phase: _Optional[str] = ..., progress: _Optional[float] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("engine", "version", "model", "model_revision", "architecture", "parameter_count", "vocabulary_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_tokens", "dtype", "quantization", "devices", "chip", "simulated", "levers", "resume_level", "rng", "features", "pid", "threads", "load_phases", "credit", "engine_settings", "weight_bytes", "kv_cache_bytes")
    class EngineSettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_COUNT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CHIP_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    LEVERS_FIELD_NUMBER: _ClassVar[int]
    RESUME_LEVEL_FIELD_NUMBER: _ClassVar[int]
    RNG_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    LOAD_PHASES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    engine: str
    version: str
    model: str
    model_revision: str
    architecture: str
    parameter_count: int
    vocabulary_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_cache_tokens: int
    dtype: str
    quantization: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    chip: str
    simulated: bool
    levers: _containers.RepeatedScalarFieldContainer[str]
    resume_level: _generation_pb2.ResumeLevel
    rng: str
    features: _containers.RepeatedScalarFieldContainer[str]
    pid: int
    threads: int
    load_phases: _containers.RepeatedCompositeFieldContainer[PhaseTime]
    credit: Credit
    engine_settings: _containers.ScalarMap[str, str]
    weight_bytes: int
    kv_cache_bytes: int
    def __init__(self, engine: _Optional[str] = ..., version: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., architecture: _Optional[str] = ..., parameter_count: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., block_size: _Optional[int] = ..., kv_cache_tokens: _Optional[int] = ..., dtype: _Optional[str] = ..., quantization: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., chip: _Optional[str] = ..., simulated: bool = ..., levers: _Optional[_Iterable[str]] = ..., resume_level: _Optional[_Union[_generation_pb2.ResumeLevel, str]] = ..., rng: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., pid: _Optional[int] = ..., threads: _Optional[int] = ..., load_phases: _Optional[_Iterable[_Union[PhaseTime, _Mapping]]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., engine_settings: _Optional[_Mapping[str, str]] = ..., weight_bytes: _Optional[int] = ..., kv_cache_bytes: _Optional[int] = ...) -> None: ...

class PhaseTime(_message.Message):
    __slots__ = ("name", "seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    seconds: float
    def __init__(self, name: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("submits_seen", "free_slots", "free_kv_tokens")
    SUBMITS_SEEN_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    FREE_KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    submits_seen: int
    free_slots: int
    free_kv_tokens: int
    def __init__(self, submits_seen: _Optional[int] = ..., free_slots: _Optional[int] = ..., free_kv_tokens: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("stream", "cause", "stop_token_id", "error", "error_text")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_TEXT_FIELD_NUMBER: _ClassVar[int]
    stream: int
    cause: StopCause
    stop_token_id: int
    error: EngineError
    error_text: str
    def __init__(self, stream: _Optional[int] = ..., cause: _Optional[_Union[StopCause, str]] = ..., stop_token_id: _Optional[int] = ..., error: _Optional[_Union[EngineError, str]] = ..., error_text: _Optional[str] = ...) -> None: ...

class Admitted(_message.Message):
    __slots__ = ("stream", "cached_tokens")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    stream: int
    cached_tokens: int
    def __init__(self, stream: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("number", "streams", "token_ids", "finished", "admitted", "credit", "limits_seq", "stats", "logprobs", "prompt_logprobs")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_SEQ_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    number: int
    streams: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finished: _containers.RepeatedCompositeFieldContainer[Finished]
    admitted: _containers.RepeatedCompositeFieldContainer[Admitted]
    credit: Credit
    limits_seq: int
    stats: StepStats
    logprobs: _containers.RepeatedCompositeFieldContainer[NewTokenLogprob]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    def __init__(self, number: _Optional[int] = ..., streams: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., finished: _Optional[_Iterable[_Union[Finished, _Mapping]]] = ..., admitted: _Optional[_Iterable[_Union[Admitted, _Mapping]]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., limits_seq: _Optional[int] = ..., stats: _Optional[_Union[StepStats, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[NewTokenLogprob, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ...) -> None: ...

class NewTokenLogprob(_message.Message):
    __slots__ = ("index", "logprob")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    index: int
    logprob: _generation_pb2.TokenLogprob
    def __init__(self, index: _Optional[int] = ..., logprob: _Optional[_Union[_generation_pb2.TokenLogprob, _Mapping]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("stream", "first", "logprobs")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    stream: int
    first: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.TokenLogprob]
    def __init__(self, stream: _Optional[int] = ..., first: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_generation_pb2.TokenLogprob, _Mapping]]] = ...) -> None: ...

class StepStats(_message.Message):
    __slots__ = ("running", "waiting", "prefill_tokens", "decode_tokens", "kv_blocks_used", "kv_blocks_total", "schedule_us", "host_prep_us", "copy_us", "device_us", "sample_us", "idle_us", "paced_us", "preempted", "preempted_tokens", "cached_tokens", "offloaded_tokens", "kv_blocks_cached", "draft_tokens", "accepted_tokens")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_US_FIELD_NUMBER: _ClassVar[int]
    HOST_PREP_US_FIELD_NUMBER: _ClassVar[int]
    COPY_US_FIELD_NUMBER: _ClassVar[int]
    DEVICE_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    IDLE_US_FIELD_NUMBER: _ClassVar[int]
    PACED_US_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OFFLOADED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    prefill_tokens: int
    decode_tokens: int
    kv_blocks_used: int
    kv_blocks_total: int
    schedule_us: int
    host_prep_us: int
    copy_us: int
    device_us: int
    sample_us: int
    idle_us: int
    paced_us: int
    preempted: int
    preempted_tokens: int
    cached_tokens: int
    offloaded_tokens: int
    kv_blocks_cached: int
    draft_tokens: int
    accepted_tokens: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., decode_tokens: _Optional[int] = ..., kv_blocks_used: _Optional[int] = ..., kv_blocks_total: _Optional[int] = ..., schedule_us: _Optional[int] = ..., host_prep_us: _Optional[int] = ..., copy_us: _Optional[int] = ..., device_us: _Optional[int] = ..., sample_us: _Optional[int] = ..., idle_us: _Optional[int] = ..., paced_us: _Optional[int] = ..., preempted: _Optional[int] = ..., preempted_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., offloaded_tokens: _Optional[int] = ..., kv_blocks_cached: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ...) -> None: ...
