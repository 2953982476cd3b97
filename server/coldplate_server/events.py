"""What a generation tells its caller, in order."""

from dataclasses import dataclass

from coldplate_server.result import ChoiceEnd, Timings, Usage


@dataclass(frozen=True, slots=True)
class Started:
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
    """``phase`` is "queued", "prefill" or "decode"."""

    phase: str
    queue_position: int
    throttled: bool


@dataclass(frozen=True, slots=True)
class Delta:
    first_token_index: int
    token_count: int
    text: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Completed:
    end: ChoiceEnd
    usage: Usage
    timings: Timings
    device: str


Event = Started | Progress | Delta | Completed
