"""What the client hands out and takes in: plain frozen values, free of protobuf. Times are in seconds."""

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why an answer ended."""

    END_OF_TEXT = "end_of_text"
    STOP_SEQUENCE = "stop_sequence"
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"
    TOOL_CALL = "tool_call"
    DEADLINE = "deadline"
    ABORTED = "aborted"
    SHED = "shed"


class ResumeLevel(StrEnum):
    """How faithfully a stream goes on after it was moved to another device."""

    EXACT = "exact"
    CONTINUOUS = "continuous"
    DEGRADED = "degraded"
    NONE = "none"


class Phase(StrEnum):
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"


class Priority(StrEnum):
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


class Fallback(StrEnum):
    """What may change when the device serving a request is lost."""

    NEVER = "never"
    SAME_MODEL = "same_model"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; ``role`` is ``system``, ``user`` or ``assistant``, as far as the model knows them."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Resume:
    """An answer of which some tokens already exist: they are not sent again, and ``max_tokens`` counts them."""

    token_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """``alternatives`` are (token id, log-probability), the likeliest first."""

    token_id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Of all choices together; the prompt is counted once. ``reasoning_tokens`` are among ``completion_tokens``."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went. ``first_token_s`` counts from arrival; ``throttled_s`` is time a limit paced the engine."""

    queued_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    per_token_s: float = 0.0
    total_s: float = 0.0
    throttled_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of a stream: what was decided about the request."""

    request_id: str
    model: str
    model_revision: str
    device: str
    prompt_tokens: int
    cached_tokens: int
    seed: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A sign of life while no text comes."""

    phase: Phase | None
    queue_position: int
    throttled: bool


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of prompt tokens from position ``first_token_index`` on; the first token of a prompt has none."""

    first_token_index: int
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one choice. ``text`` may be empty while a character or a possible stop sequence is incomplete.

    ``reasoning_text`` is what a thinking model thinks before it answers; ``logprobs``, where asked for, has one entry
    for each token.
    """

    text: str
    token_ids: tuple[int, ...]
    choice_index: int
    first_token_index: int
    token_count: int
    reasoning_text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Migrated:
    """The stream has moved to another device; ``at_token_index`` tokens had been emitted."""

    from_device: str
    to_device: str
    level: ResumeLevel | None
    at_token_index: int


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    choice_index: int
    reason: FinishReason | None
    stop_sequence: str | None
    stop_token_id: int | None


@dataclass(frozen=True, slots=True)
class Completed:
    """The last event of a whole answer."""

    usage: Usage
    timings: Timings


Event = Started | Progress | PromptLogprobs | Delta | Migrated | ChoiceFinished | Completed


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the ``n`` answers to a prompt."""

    index: int = 0
    text: str = ""
    reasoning_text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_sequence: str | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, whole or, on an error's ``partial``, as far as it came (``finish_reason`` is then None).

    ``choices`` has at least one; ``text`` and its like are of the first, which most calls ask for alone.
    """

    choices: tuple[Choice, ...] = (Choice(),)
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    device: str = ""
    seed: int = 0
    request_id: str = ""
    model: str = ""
    model_revision: str = ""
    migrated: Migrated | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def reasoning_text(self) -> str:
        return self.choices[0].reasoning_text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.choices[0].finish_reason

    @property
    def stop_sequence(self) -> str | None:
        return self.choices[0].stop_sequence

    @property
    def stop_token_id(self) -> int | None:
        return self.choices[0].stop_token_id

    def resume(self, earlier: Resume | None = None) -> Resume:
        """What another call needs to continue the first choice; ``earlier`` is what this one itself continued."""
        return Resume(token_ids=(*(earlier.token_ids if earlier else ()), *self.token_ids), seed=self.seed)


@dataclass(frozen=True, slots=True)
class TokenCount:
    """``context_left`` is what the context has left for an answer."""

    tokens: int
    context_left: int
