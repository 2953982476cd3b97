"""The arithmetic of a request: what is left for the answer, and what can never fit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate_server.errors import ContextCapped, InvalidRequest
from coldplate_server.fit import Room, check_resumable, fit_max_tokens
from coldplate_server.request import GenerationRequest, SamplingParams, StopRules

ROOM = Room(context=256, cache=None, vocabulary=100)


def fit(prompt: int, max_tokens: int | None = None, room: Room = ROOM, resumed: int = 0) -> int:
    request = GenerationRequest("r", "m", "text", max_tokens=max_tokens, resume_ids=(1,) * resumed)
    return fit_max_tokens(request, [1] * prompt, room, default=64, prefix="request.")


def refusal(*args: int, **kwargs: Room | int) -> tuple[str, str]:
    with pytest.raises(InvalidRequest) as refused:
        fit(*args, **kwargs)  # type: ignore[arg-type]
    (violation,) = refused.value.violations
    return violation.field, violation.description


def test_max_tokens_is_lowered_to_what_the_context_has_left() -> None:
    assert fit(10) == 64
    assert fit(10, 20) == 20
    assert fit(255, 50) == 1
    assert fit(200, 2**31 - 1) == 56


def test_a_prompt_that_leaves_nothing_is_refused_with_the_numbers() -> None:
    assert refusal(256) == ("request.input", "the prompt has 256 tokens; the context holds 256, answer included")
    assert refusal(0)[1].startswith("the prompt is empty")


def test_what_no_cache_can_hold_is_refused_with_the_numbers() -> None:
    small = Room(context=256, cache=64, vocabulary=100)
    assert fit(24, 40, small) == 40
    field, text = refusal(25, 40, room=small)
    assert field == "request.input"
    assert "need a cache of 65 tokens; the engine has 64" in text


CAPPED = replace(ROOM, context_now=64)


def test_a_limit_on_the_context_shortens_what_fits_and_refuses_by_name_what_does_not() -> None:
    assert fit(10, 100, CAPPED) == 54
    assert fit(63, 8, CAPPED) == 1
    with pytest.raises(ContextCapped) as refused:
        fit(64, 8, CAPPED)
    assert "prompt has 64 tokens" in refused.value.message
    assert "max_context_tokens, allows 64 for now" in refused.value.message
    assert refused.value.facts == {"limit": "max_context_tokens", "max_context_tokens": "64", "prompt_tokens": "64"}
    assert refused.value.retry_after_s
    assert refusal(256, room=CAPPED)[0] == "request.input", "too long for the model: a release would not help"


def test_a_limit_on_the_context_neither_ends_nor_forbids_the_end_of_a_resumed_answer() -> None:
    assert fit(10, 60, CAPPED, resumed=53) == 54
    with pytest.raises(ContextCapped, match="and 54 tokens of the answer"):
        fit(10, 60, CAPPED, resumed=54)
    assert fit(10, 60, CAPPED, resumed=60) == 60


@given(
    prompt=st.integers(1, 255),
    wanted=st.integers(1, 300),
    cap=st.integers(1, 300),
    resumed=st.integers(0, 100),
)
def test_a_limit_on_the_context_is_kept_or_the_request_refused(
    prompt: int, wanted: int, cap: int, resumed: int
) -> None:
    room = replace(ROOM, context_now=min(cap, ROOM.context))
    try:
        allowed = fit(prompt, wanted, room, resumed=resumed)
    except (InvalidRequest, ContextCapped):
        return
    assert allowed == resumed or (prompt + allowed <= cap and resumed < allowed <= wanted)


def test_an_answer_longer_than_it_may_be_cannot_be_resumed() -> None:
    assert fit(10, 20, resumed=19) == fit(10, 20, resumed=20) == 20
    assert refusal(10, 20, resumed=21)[0] == "request.resume.emitted_token_ids"


def test_an_answer_that_holds_an_end_cannot_be_resumed() -> None:
    request = GenerationRequest("r", "m", "text", resume_ids=(1, 2, 3))
    check_resumable(request, {0, 4}, "")
    with pytest.raises(InvalidRequest) as refused:
        check_resumable(request, {0, 2}, "request.")
    assert refused.value.violations[0].field == "request.resume.emitted_token_ids[1]"


def test_ids_outside_the_vocabulary_are_refused_by_field() -> None:
    request = GenerationRequest("r", "m", (1, 100), stop=StopRules(token_ids=frozenset({5})))
    with pytest.raises(InvalidRequest, match="input: token id 100 is outside the vocabulary of 100"):
        fit_max_tokens(request, [1, 100], ROOM, 64, "")
    request = GenerationRequest("r", "m", (1,), stop=StopRules(token_ids=frozenset({-1})))
    with pytest.raises(InvalidRequest, match=r"stopping\.stop_token_ids: token id -1"):
        fit_max_tokens(request, [1], ROOM, 64, "")


def test_a_bias_on_an_unknown_token_is_refused() -> None:
    for token in (100, 999_999):
        request = GenerationRequest("r", "m", (1,), sampling=SamplingParams(logit_bias={99: 1.0, token: 5.0}))
        with pytest.raises(InvalidRequest, match=rf"sampling\.logit_bias: token id {token} is outside"):
            fit_max_tokens(request, [1], ROOM, 64, "")


def test_min_tokens_above_the_default_is_refused_and_above_the_context_is_not() -> None:
    request = GenerationRequest("r", "m", (1,), stop=StopRules(min_tokens=65))
    with pytest.raises(InvalidRequest, match=r"min_tokens: is 65, above max_tokens, which is 64"):
        fit_max_tokens(request, [1], ROOM, 64, "")
    assert fit_max_tokens(replace(request, max_tokens=65), [1] * 250, ROOM, 64, "") == 6


def test_more_log_probabilities_than_a_reply_can_hold_are_refused_by_field() -> None:
    wide = Room(context=2**20, cache=None, vocabulary=100)
    request = GenerationRequest("r", "m", (1,), n=64, max_tokens=800, logprobs=20)
    with pytest.raises(InvalidRequest, match=r"reporting\.logprobs: is 20 beside each of up to 51200 tokens"):
        fit_max_tokens(request, [1], wide, 64, "")
    assert fit_max_tokens(replace(request, logprobs=18), [1], wide, 64, "") == 800
    request = GenerationRequest("r", "m", (1,), prompt_logprobs=20)
    with pytest.raises(InvalidRequest, match=r"reporting\.prompt_logprobs"):
        fit_max_tokens(request, [1] * 50_000, wide, 64, "")


@given(st.integers(1, 300), st.integers(1, 400), st.integers(1, 300), st.integers(1, 300))
def test_what_fits_never_exceeds_context_or_cache(prompt: int, wanted: int, context: int, cache: int) -> None:
    try:
        max_tokens = fit(prompt, wanted, Room(context, cache, 100))
    except InvalidRequest:
        return
    assert 1 <= max_tokens <= wanted
    assert prompt + max_tokens <= min(context, cache)
