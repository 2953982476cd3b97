"""A request as the service understands it: checked, with every default applied, free of protobuf."""

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
    """``temperature`` 0 is greedy; ``top_k`` 0 keeps all. ``seed`` None: the server picks one."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class StopRules:
    sequences: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    ignore_end_of_text: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """``max_tokens`` and ``queue_timeout_s`` None: the server's own. ``resume_ids`` were emitted by an earlier call."""

    request_id: str
    model: str
    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: StopRules = field(default_factory=StopRules)
    want_text: bool = True
    want_token_ids: bool = False
    special_tokens: bool = False
    priority: Priority = Priority.NORMAL
    queue_timeout_s: float | None = None
    fallback: FallbackPolicy = FallbackPolicy.SAME_MODEL
    resume_ids: tuple[int, ...] = ()
