"""What a generation tells its caller, in order."""

from dataclasses import dataclass

from coldplate_server.result import ChoiceEnd, FinishReason, Timings, TokenLogprob, Usage


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
class PromptLogprobs:
    """Of prompt tokens from position ``first_token_index`` on."""

    first_token_index: int
    logprobs: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class Delta:
    choice_index: int
    first_token_index: int
    token_count: int
    text: str
    reasoning_text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    choice_index: int
    end: ChoiceEnd


@dataclass(frozen=True, slots=True)
class Completed:
    """``reasons`` are those of the choices, by index."""

    reasons: tuple[FinishReason, ...]
    usage: Usage
    timings: Timings
    device: str


Event = Started | Progress | PromptLogprobs | Delta | ChoiceFinished | Completed
