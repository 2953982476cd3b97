"""How an answer ended and what it cost, free of protobuf."""

from dataclasses import dataclass
from enum import Enum


class FinishReason(Enum):
    """Why a choice ended. The last three keep a partial answer on purpose; otherwise the call ends with a status."""

    END_OF_TEXT = "end_of_text"
    STOP_SEQUENCE = "stop_sequence"
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"
    TOOL_CALL = "tool_call"
    DEADLINE = "deadline"
    ABORTED = "aborted"
    SHED = "shed"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """``alternatives`` are (token id, log-probability), the likeliest first."""

    token_id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, of all its choices; the prompt is counted once.

    ``cached_tokens`` are those of the prompt that the prefix cache held, ``reasoning_tokens`` those of thinking, up to
    its end mark, among the ``completion_tokens``.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one request went, in seconds.

    ``queued`` runs from arrival to hand-over to an engine, ``prefill`` from there to the first token, ``first_token``
    from arrival to the first token, ``decode`` from the first token to the last; ``per_token`` is the mean between two
    tokens.
    """

    queued_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    per_token_s: float = 0.0
    total_s: float = 0.0
    throttled_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """The end of one choice; at most one of the two matches is set, and only with ``STOP_SEQUENCE``."""

    reason: FinishReason
    stop_sequence: str | None = None
    stop_token_id: int | None = None
