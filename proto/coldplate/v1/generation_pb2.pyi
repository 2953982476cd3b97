from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_LOW: _ClassVar[Priority]
    PRIORITY_NORMAL: _ClassVar[Priority]
    PRIORITY_HIGH: _ClassVar[Priority]

class Fallback(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FALLBACK_UNSPECIFIED: _ClassVar[Fallback]
    FALLBACK_NEVER: _ClassVar[Fallback]
    FALLBACK_SAME_MODEL: _ClassVar[Fallback]
    FALLBACK_ANY: _ClassVar[Fallback]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_END_OF_TEXT: _ClassVar[FinishReason]
    FINISH_REASON_STOP_SEQUENCE: _ClassVar[FinishReason]
    FINISH_REASON_MAX_TOKENS: _ClassVar[FinishReason]
    FINISH_REASON_CONTEXT_FULL: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALL: _ClassVar[FinishReason]
    FINISH_REASON_DEADLINE: _ClassVar[FinishReason]
    FINISH_REASON_ABORTED: _ClassVar[FinishReason]
    FINISH_REASON_SHED: _ClassVar[FinishReason]

class ResumeLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESUME_LEVEL_UNSPECIFIED: _ClassVar[ResumeLevel]
    RESUME_LEVEL_EXACT: _ClassVar[ResumeLevel]
    RESUME_LEVEL_CONTINUOUS: _ClassVar[ResumeLevel]
    RESUME_LEVEL_DEGRADED: _ClassVar[ResumeLevel]
    RESUME_LEVEL_NONE: _ClassVar[ResumeLevel]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_QUEUED: _ClassVar[Phase]
    PHASE_PREFILL: _ClassVar[Phase]
    PHASE_DECODE: _ClassVar[Phase]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_LOW: Priority
PRIORITY_NORMAL: Priority
PRIORITY_HIGH: Priority
FALLBACK_UNSPECIFIED: Fallback
FALLBACK_NEVER: Fallback
FALLBACK_SAME_MODEL: Fallback
FALLBACK_ANY: Fallback
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_END_OF_TEXT: FinishReason
FINISH_REASON_STOP_SEQUENCE: FinishReason
FINISH_REASON_MAX_TOKENS: FinishReason
FINISH_REASON_CONTEXT_FULL: FinishReason
FINISH_REASON_TOOL_CALL: FinishReason
FINISH_REASON_DEADLINE: FinishReason
FINISH_REASON_ABORTED: FinishReason
FINISH_REASON_SHED: FinishReason
RESUME_LEVEL_UNSPECIFIED: ResumeLevel
RESUME_LEVEL_EXACT: ResumeLevel
RESUME_LEVEL_CONTINUOUS: ResumeLevel
RESUME_LEVEL_DEGRADED: ResumeLevel
RESUME_LEVEL_NONE: ResumeLevel
PHASE_UNSPECIFIED: Phase
PHASE_QUEUED: Phase
PHASE_PREFILL: Phase
PHASE_DECODE: Phase

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "model", "text", "token_ids", "conversation", "sampling", "stopping", "json_schema", "regex", "choices", "grammar", "reporting", "scheduling", "fallback", "resume", "reasoning")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    REPORTING_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    text: str
    token_ids: TokenIds
    conversation: Conversation
    sampling: Sampling
    stopping: Stopping
    json_schema: str
    regex: str
    choices: Choices
    grammar: str
    reporting: Reporting
    scheduling: Scheduling
    fallback: Fallback
    resume: Resume
    reasoning: Reasoning
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., conversation: _Optional[_Union[Conversation, _Mapping]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., stopping: _Optional[_Union[Stopping, _Mapping]] = ..., json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., choices: _Optional[_Union[Choices, _Mapping]] = ..., grammar: _Optional[str] = ..., reporting: _Optional[_Union[Reporting, _Mapping]] = ..., scheduling: _Optional[_Union[Scheduling, _Mapping]] = ..., fallback: _Optional[_Union[Fallback, str]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., reasoning: _Optional[_Union[Reasoning, _Mapping]] = ...) -> None: ...

class Choices(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Conversation(_message.Message):
    __slots__ = ("messages", "tools", "continue_final_message")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    continue_final_message: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., continue_final_message: bool = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "text", "parts", "tool_calls", "tool_call_id")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    role: str
    text: str
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    def __init__(self, role: _Optional[str] = ..., text: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("text", "image")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    text: str
    image: Image
    def __init__(self, text: _Optional[str] = ..., image: _Optional[_Union[Image, _Mapping]] = ...) -> None: ...

class Image(_message.Message):
    __slots__ = ("data", "url")
    DATA_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    url: str
    def __init__(self, data: _Optional[bytes] = ..., url: _Optional[str] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters_json_schema")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters_json_schema: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters_json_schema: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments_json: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "n", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
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
    N_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    n: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., n: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ...) -> None: ...

class Stopping(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "stop_sequences", "stop_token_ids", "ignore_end_of_text")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_END_OF_TEXT_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    stop_sequences: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_end_of_text: bool
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_sequences: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_end_of_text: bool = ...) -> None: ...

class Reporting(_message.Message):
    __slots__ = ("text", "token_ids", "logprobs", "prompt_logprobs", "special_tokens")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    text: bool
    token_ids: bool
    logprobs: int
    prompt_logprobs: int
    special_tokens: bool
    def __init__(self, text: bool = ..., token_ids: bool = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., special_tokens: bool = ...) -> None: ...

class Scheduling(_message.Message):
    __slots__ = ("priority", "queue_timeout")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    priority: Priority
    queue_timeout: _duration_pb2.Duration
    def __init__(self, priority: _Optional[_Union[Priority, str]] = ..., queue_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("emitted_token_ids", "seed")
    EMITTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    emitted_token_ids: _containers.RepeatedScalarFieldContainer[int]
    seed: int
    def __init__(self, emitted_token_ids: _Optional[_Iterable[int]] = ..., seed: _Optional[int] = ...) -> None: ...

class Reasoning(_message.Message):
    __slots__ = ("enabled", "budget_tokens")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    BUDGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    budget_tokens: int
    def __init__(self, enabled: bool = ..., budget_tokens: _Optional[int] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob", "alternatives")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    alternatives: _containers.RepeatedCompositeFieldContainer[TokenAlternative]
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., alternatives: _Optional[_Iterable[_Union[TokenAlternative, _Mapping]]] = ...) -> None: ...

class TokenAlternative(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queued", "prefill", "first_token", "decode", "per_token", "total", "throttled")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    queued: _duration_pb2.Duration
    prefill: _duration_pb2.Duration
    first_token: _duration_pb2.Duration
    decode: _duration_pb2.Duration
    per_token: _duration_pb2.Duration
    total: _duration_pb2.Duration
    throttled: _duration_pb2.Duration
    def __init__(self, queued: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., prefill: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., first_token: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., decode: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., per_token: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., total: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., throttled: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("index", "text", "reasoning_text", "token_ids", "logprobs", "finish_reason", "stop_sequence", "stop_token_id", "tool_calls")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASONING_TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    reasoning_text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    finish_reason: FinishReason
    stop_sequence: str
    stop_token_id: int
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., reasoning_text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., stop_sequence: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("request_id", "model", "model_revision", "device", "seed", "choices", "usage", "timings", "migrated", "prompt_logprobs")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    MIGRATED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    model_revision: str
    device: str
    seed: int
    choices: _containers.RepeatedCompositeFieldContainer[Choice]
    usage: Usage
    timings: Timings
    migrated: Migrated
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., device: _Optional[str] = ..., seed: _Optional[int] = ..., choices: _Optional[_Iterable[_Union[Choice, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., migrated: _Optional[_Union[Migrated, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class StreamGenerateRequest(_message.Message):
    __slots__ = ("request", "options")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    request: GenerateRequest
    options: StreamOptions
    def __init__(self, request: _Optional[_Union[GenerateRequest, _Mapping]] = ..., options: _Optional[_Union[StreamOptions, _Mapping]] = ...) -> None: ...

class StreamOptions(_message.Message):
    __slots__ = ("flush_interval", "progress_interval")
    FLUSH_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    flush_interval: _duration_pb2.Duration
    progress_interval: _duration_pb2.Duration
    def __init__(self, flush_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., progress_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class StreamGenerateResponse(_message.Message):
    __slots__ = ("started", "progress", "delta", "migrated", "choice_finished", "completed", "prompt_logprobs")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    MIGRATED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FINISHED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    started: Started
    progress: Progress
    delta: Delta
    migrated: Migrated
    choice_finished: ChoiceFinished
    completed: Completed
    prompt_logprobs: PromptLogprobs
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., migrated: _Optional[_Union[Migrated, _Mapping]] = ..., choice_finished: _Optional[_Union[ChoiceFinished, _Mapping]] = ..., completed: _Optional[_Union[Completed, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("request_id", "model", "model_revision", "device", "prompt_tokens", "cached_tokens", "seed", "max_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    model_revision: str
    device: str
    prompt_tokens: int
    cached_tokens: int
    seed: int
    max_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., model_revision: _Optional[str] = ..., device: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("phase", "queue_position", "throttled")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    queue_position: int
    throttled: bool
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., queue_position: _Optional[int] = ..., throttled: bool = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("first_token_index", "logprobs")
    FIRST_TOKEN_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    first_token_index: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, first_token_index: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("choice_index", "first_token_index", "token_count", "text", "reasoning_text", "token_ids", "logprobs")
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASONING_TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    choice_index: int
    first_token_index: int
    token_count: int
    text: str
    reasoning_text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, choice_index: _Optional[int] = ..., first_token_index: _Optional[int] = ..., token_count: _Optional[int] = ..., text: _Optional[str] = ..., reasoning_text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class Migrated(_message.Message):
    __slots__ = ("from_device", "to_device", "level", "at_token_index")
    FROM_DEVICE_FIELD_NUMBER: _ClassVar[int]
    TO_DEVICE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    AT_TOKEN_INDEX_FIELD_NUMBER: _ClassVar[int]
    from_device: str
    to_device: str
    level: ResumeLevel
    at_token_index: int
    def __init__(self, from_device: _Optional[str] = ..., to_device: _Optional[str] = ..., level: _Optional[_Union[ResumeLevel, str]] = ..., at_token_index: _Optional[int] = ...) -> None: ...

class ChoiceFinished(_message.Message):
    __slots__ = ("choice_index", "reason", "stop_sequence", "stop_token_id", "tool_calls")
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    choice_index: int
    reason: FinishReason
    stop_sequence: str
    stop_token_id: int
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    def __init__(self, choice_index: _Optional[int] = ..., reason: _Optional[_Union[FinishReason, str]] = ..., stop_sequence: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ...) -> None: ...

class Completed(_message.Message):
    __slots__ = ("usage", "timings")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    usage: Usage
    timings: Timings
    def __init__(self, usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...
