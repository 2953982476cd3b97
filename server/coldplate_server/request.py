"""A request as the service understands it: checked, with every default applied, free of protobuf."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum


class Priority(IntEnum):
    LOW = 1
    NORMAL = 2
    HIGH = 3


class FallbackPolicy(Enum):
    NEVER = "never"
    SAME_MODEL = "same_model"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn. ``text`` joins the parts of a message given in parts."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Conversation:
    messages: tuple[ChatMessage, ...]
    continue_final_message: bool = False


Prompt = str | tuple[int, ...] | Conversation


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """``temperature`` 0 is greedy; ``top_k`` 0 keeps all. ``seed`` None: the server picks one.

    ``repetition_penalty`` 1 and the other penalties 0 change nothing; ``logit_bias`` is by token id.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopRules:
    """``min_tokens`` holds back the end of text and ``token_ids``, not ``sequences``."""

    sequences: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    ignore_end_of_text: bool = False
    min_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the answer must be. ``kind`` is the field of the contract: json_schema, regex, choices or grammar.

    ``texts`` holds one text, or the choices.
    """

    kind: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """``enabled`` None: the model's own default. ``budget_tokens`` None: no end to thinking but the model's."""

    enabled: bool | None = None
    budget_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """``max_tokens`` and ``queue_timeout_s`` None: the server's own. ``resume_ids`` were emitted by an earlier call.

    ``tenant`` is whom the work is counted for. ``n`` answers are made. ``logprobs`` and ``prompt_logprobs``
    count the alternatives to report; None reports nothing.
    """

    request_id: str
    model: str
    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    max_tokens: int | None = None
    stop: StopRules = field(default_factory=StopRules)
    want_text: bool = True
    want_token_ids: bool = False
    special_tokens: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None
    reasoning: Reasoning = field(default_factory=Reasoning)
    priority: Priority = Priority.NORMAL
    queue_timeout_s: float | None = None
    fallback: FallbackPolicy = FallbackPolicy.SAME_MODEL
    resume_ids: tuple[int, ...] = ()
    tenant: str = ""
