"""What goes in and out of the engine loop: plain values, free of protobuf."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from coldplate.limits import Limits


@dataclass(frozen=True, slots=True)
class Sampling:
    """``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 keep every token."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Submission:
    """A stream to generate. ``max_tokens`` counts ``emitted_ids``, which exist already; ``deadline_s`` is time left."""

    stream: int
    prompt_ids: tuple[int, ...]
    max_tokens: int
    emitted_ids: tuple[int, ...] = ()
    sampling: Sampling = Sampling()
    stop_ids: frozenset[int] = frozenset()
    priority: int = 2
    request_id: str = ""
    deadline_s: float | None = None


class StopCause(Enum):
    STOP_TOKEN = "stop_token"  # noqa: S105 (a cause, not a secret)
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"
    CANCELLED = "cancelled"
    ERROR = "error"


class EngineError(Enum):
    NON_FINITE_LOGITS = "non_finite_logits"
    OUT_OF_MEMORY = "out_of_memory"
    UNSATISFIABLE = "unsatisfiable"
    DEVICE = "device"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Finished:
    stream: int
    cause: StopCause
    stop_token_id: int = 0
    error: EngineError | None = None
    error_text: str = ""


@dataclass(frozen=True, slots=True)
class Credit:
    """What may still be submitted, as of the moment ``submits_seen`` submissions had been seen on this connection."""

    submits_seen: int
    free_slots: int
    free_kv_tokens: int


@dataclass(slots=True)
class StepStats:
    running: int = 0
    waiting: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by step_timer.PARTS; empty without a step


@dataclass(slots=True)
class StepOutput:
    """All that one step brought, and the state after it. ``streams[i]`` got ``token_ids[i]``."""

    number: int
    streams: list[int]
    token_ids: list[int]
    finished: list[Finished]
    admitted: list[int]
    credit: Credit
    limits_seq: int
    stats: StepStats


Emit = Callable[[StepOutput], None]


@dataclass(frozen=True, slots=True)
class Connect:
    """A server has connected: its streams only, from now on, and reports go to ``emit``. Ends what was there before."""

    emit: Emit


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The server is gone: end all its streams."""


@dataclass(frozen=True, slots=True)
class Cancel:
    stream: int


@dataclass(frozen=True, slots=True)
class SetLimits:
    seq: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class Drain:
    """Take no more submissions on this connection."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End when the streams in hand have ended, or ``now``."""

    now: bool = False


Command = Connect | Disconnect | Submission | Cancel | SetLimits | Drain | Shutdown
