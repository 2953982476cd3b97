"""What goes in and out of the engine loop: plain values, free of protobuf."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from coldplate.limits import Limits

if TYPE_CHECKING:
    from coldplate_engine.guided.guide import ConstraintError, Guide


@dataclass(frozen=True, slots=True)
class Sampling:
    """``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 keep every token.

    ``repetition_penalty`` 1 and the other penalties 0 change nothing; ``logit_bias`` is (token id, added value) pairs.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def penalises(self) -> bool:
        """Whether the tokens so far change the logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the answer must be; ``choices`` with that kind, else ``text``. "grammar" is in Lark syntax."""

    kind: Literal["json_schema", "regex", "choices", "grammar"]
    text: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model marks its thinking; ``open``: the prompt has opened it.

    After ``budget_tokens`` tokens of thinking (None: no end to it) ``close_ids`` are put out; they hold ``end_id``.
    """

    start_id: int
    end_id: int
    open: bool = False
    budget_tokens: int | None = None
    close_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Submission:
    """A stream to generate. ``max_tokens`` counts ``emitted_ids``, which exist already; ``deadline_s`` is time left.

    ``sibling_of`` is an earlier stream of the same prompt, 0 for none. ``logprobs`` and ``prompt_logprobs`` are numbers
    of alternatives, None when nothing is wanted. Cached prompts are shared between equal salts only.
    """

    stream: int
    prompt_ids: tuple[int, ...]
    max_tokens: int
    emitted_ids: tuple[int, ...] = ()
    sampling: Sampling = Sampling()
    stop_ids: frozenset[int] = frozenset()
    priority: int = 2
    request_id: str = ""
    deadline_s: float | None = None
    sibling_of: int = 0
    constraint: Constraint | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    thinking: Thinking | None = None
    cache_salt: str = ""


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
    BAD_CONSTRAINT = "bad_constraint"


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


@dataclass(frozen=True, slots=True)
class Admitted:
    """A stream whose first prompt tokens went into a step; ``cached_tokens`` of its prompt had not to be computed."""

    stream: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability before temperature, penalties, bias and constraint.

    ``alternatives`` are (token id, logprob) pairs, greatest first.
    """

    token_id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of the prompt tokens from position ``first`` on."""

    stream: int
    first: int
    logprobs: list[TokenLogprob]


@dataclass(slots=True)
class StepStats:
    """``preempted_tokens`` were in the cache and must be computed again; see the contract for the rest."""

    running: int = 0
    waiting: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    preempted: int = 0
    preempted_tokens: int = 0
    cached_tokens: int = 0
    offloaded_tokens: int = 0
    kv_blocks_cached: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by step_timer.PARTS; empty without a step


@dataclass(slots=True)
class StepOutput:
    """All that one step brought, and the state after it. ``streams[i]`` got ``token_ids[i]``.

    ``logprobs`` are (index into ``token_ids``, value) pairs, for the streams that asked.
    """

    number: int
    streams: list[int]
    token_ids: list[int]
    finished: list[Finished]
    admitted: list[Admitted]
    credit: Credit
    limits_seq: int
    stats: StepStats
    logprobs: list[tuple[int, TokenLogprob]] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)


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


@dataclass(frozen=True, slots=True)
class GuideReady:
    """The constraint of ``submission`` has been compiled, or cannot be. From inside the worker."""

    submission: Submission
    guide: "Guide | ConstraintError"


Command = Connect | Disconnect | Submission | Cancel | SetLimits | Drain | Shutdown | GuideReady
