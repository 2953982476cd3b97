"""Area 2: sampling parameters."""

import math

import pytest

from support.case_models import page
from support.client import StreamCall, both, request, stream, unary
from support.processes import Stack
from support.tokenizers import BYTES_VOCABULARY, POISON_ID

pytestmark = pytest.mark.usefixtures("alive")


@pytest.mark.parametrize(
    "options", [{"temperature": 1e-4}, {"temperature": 1e-38}, {"temperature": 1.0, "top_p": 1e-4}]
)
def test_s1_tiny_temperature_and_top_p_are_greedy(service: Stack, options: dict[str, float]) -> None:
    greedy = unary(service, request("a little prompt", model="chatty", max_tokens=16, ignore_end_of_text=True))
    beside = StreamCall(service, request("a little prompt", model="chatty", max_tokens=64, ignore_end_of_text=True))
    beside.start_reading()
    tiny = unary(service, request("a little prompt", model="chatty", max_tokens=16, ignore_end_of_text=True, **options))
    assert tiny.ok, tiny.message
    assert tiny.text == greedy.text
    assert beside.result().text.startswith(greedy.text.rstrip("\ufffd"))
    assert beside.outcome.token_count == 64


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.1),
        ("top_p", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", math.nan),
        ("min_p", 2.0),
        ("top_k", -1),
        ("presence_penalty", math.nan),
    ],
)
def test_s2_a_number_out_of_range_is_refused_by_name(service: Stack, field: str, value: float) -> None:
    for call in (unary, stream):
        outcome = call(service, request("hi", model="book", max_tokens=4, **{field: value}))
        assert outcome.code.name == "INVALID_ARGUMENT"
        assert [name.removeprefix("request.") for name in outcome.fields] == [f"sampling.{field}"]
        assert not outcome.deltas


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_s4_an_impossible_repetition_penalty_is_refused(service: Stack, value: float) -> None:
    outcome = unary(service, request("hi", model="book", max_tokens=4, repetition_penalty=value))
    assert outcome.code.name == "INVALID_ARGUMENT"
    assert outcome.fields == ["sampling.repetition_penalty"]


def test_s4_a_repetition_penalty_of_one_changes_nothing(service: Stack) -> None:
    prompt = page("letters").prompt
    unset = unary(service, request(prompt, model="book", max_tokens=4))
    neutral = unary(service, request(prompt, model="book", max_tokens=4, repetition_penalty=1.0))
    assert unset.text == neutral.text == "ABCD"


def test_s4_a_large_repetition_penalty_leaves_no_token_twice(service: Stack) -> None:
    options = {"model": "chatty", "max_tokens": 16, "ignore_end_of_text": True, "token_ids": True}
    prompt = "aaaaaaaa"
    outcome = both(service, request(prompt, repetition_penalty=100.0, **options))
    assert len({*outcome.token_ids, *prompt.encode()}) == len(outcome.token_ids) + 1


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_s4_a_penalty_changes_what_repeats(service: Stack, name: str) -> None:
    options = {"model": "chatty", "max_tokens": 64, "ignore_end_of_text": True, "token_ids": True}
    plain = unary(service, request("hello", **options)).token_ids
    changed = unary(service, request("hello", **{name: 2.0}, **options)).token_ids
    assert len(set(changed)) > len(set(plain))


def test_s6_a_seeded_answer_does_not_depend_on_who_runs_beside(service: Stack) -> None:
    seeded = request("once upon a", model="chatty", temperature=0.8, seed=42, max_tokens=16, ignore_end_of_text=True)
    unseeded = request("something else", model="chatty", temperature=0.8, max_tokens=100, ignore_end_of_text=True)
    texts = [unary(service, seeded).text for _ in range(2)]
    for _ in range(5):
        beside = StreamCall(service, unseeded).read_deltas(1)
        texts.append(unary(service, seeded).text)
        beside.cancel()
        beside.read_all()
    assert len(set(texts)) == 1
    assert texts[0]


def test_s6_other_seeds_give_other_answers(service: Stack) -> None:
    texts = {
        unary(service, request("once upon a", model="chatty", temperature=0.8, seed=seed, max_tokens=16)).text
        for seed in range(4)
    }
    assert len(texts) == 4


@pytest.mark.parametrize("value", [0, -1])
def test_s8_max_tokens_below_one_is_refused(service: Stack, value: int) -> None:
    outcome = unary(service, request("hi", model="book", max_tokens=value))
    assert outcome.code.name == "INVALID_ARGUMENT"
    assert outcome.fields == ["stopping.max_tokens"]


def test_s8_max_tokens_unset_is_the_default(service: Stack) -> None:
    outcome = stream(service, request(page("italian").prompt, model="book"))
    assert outcome.text == "UNO DUE TRE"
    assert outcome.started is not None
    assert outcome.started.max_tokens == 256


def test_s9_min_tokens_above_max_tokens_is_refused_naming_both(service: Stack) -> None:
    outcome = unary(service, request("hi", model="book", min_tokens=10, max_tokens=4))
    assert outcome.code.name == "INVALID_ARGUMENT"
    assert "min_tokens" in outcome.message
    assert "max_tokens" in outcome.message


def test_s9_min_tokens_above_the_default_is_refused(service: Stack) -> None:
    outcome = unary(service, request("hi", model="book", min_tokens=300))
    assert (outcome.code.name, outcome.fields) == ("INVALID_ARGUMENT", ["stopping.min_tokens"])


def test_s9_min_tokens_hold_back_the_end(service: Stack) -> None:
    prompt = page("italian").prompt
    outcome = both(service, request(prompt, model="book", min_tokens=15, max_tokens=15))
    assert outcome.text.startswith("UNO DUE TRE")
    assert (outcome.token_count, outcome.finish) == (15, "MAX_TOKENS")


@pytest.mark.parametrize("token", [BYTES_VOCABULARY, 999_999, -1])
def test_s10_a_bias_on_a_token_that_is_not_there_is_refused(service: Stack, token: int) -> None:
    outcome = unary(service, request("hi", model="book", max_tokens=4, logit_bias={token: 5.0}))
    assert outcome.code.name == "INVALID_ARGUMENT"
    assert outcome.fields[0].startswith("sampling.logit_bias")


def test_s10_a_bias_on_the_last_token_of_the_vocabulary(service: Stack) -> None:
    plain = unary(service, request(page("letters").prompt, model="book", max_tokens=4))
    outcome = unary(service, request(page("letters").prompt, model="book", max_tokens=4, logit_bias={260: -5.0}))
    assert outcome.ok, outcome.message
    assert outcome.text == plain.text


def test_s10_a_bias_decides(service: Stack) -> None:
    options = {"model": "chatty", "max_tokens": 4, "token_ids": True, "ignore_end_of_text": True}
    assert both(service, request("hello", logit_bias={ord("z"): 100.0}, **options)).text == "zzzz"
    plain = unary(service, request("hello", **options)).token_ids
    other = both(service, request("hello", logit_bias={plain[0]: -100.0}, **options)).token_ids
    assert plain[0] not in other


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_s12_nan_logits_end_that_request_alone(service: Stack, temperature: float) -> None:
    neighbour = StreamCall(service, request(page("after two hundred").prompt, model="book", max_tokens=28))
    neighbour.start_reading()
    poisoned = stream(service, request([120, POISON_ID, 120], model="book", max_tokens=50, temperature=temperature))
    assert poisoned.code.name == "INTERNAL"
    assert poisoned.reason == "NON_FINITE_LOGITS"
    assert poisoned.token_count <= 1
    assert neighbour.result().text == "second answer of some length"


def test_s12_blocks_of_a_poisoned_request_are_clean_for_the_next(service: Stack) -> None:
    for _ in range(3):
        assert unary(service, request([POISON_ID] * 40, model="book", max_tokens=4)).code.name == "INTERNAL"
        for name in ("letters", "after two hundred"):
            script = page(name)
            after = unary(service, request(script.prompt, model="book", max_tokens=len(script.token_ids)))
            assert after.text == bytes(script.token_ids).decode()


@pytest.mark.parametrize("value", [1_000_000_000, -1])
def test_s13_logprobs_out_of_range_are_refused_with_the_limit(service: Stack, value: int) -> None:
    outcome = unary(service, request("hi", model="book", max_tokens=4, logprobs=value))
    assert outcome.code.name == "INVALID_ARGUMENT"
    assert outcome.fields == ["reporting.logprobs"]
    assert "0 to 20" in outcome.message


@pytest.mark.parametrize("count", [0, 1, 20])
def test_s13_log_probabilities_of_what_is_delivered(service: Stack, count: int) -> None:
    options = {"model": "book", "max_tokens": 40, "token_ids": True, "logprobs": count}
    outcome = both(service, request(page("numbers").prompt, stop_sequences=["five"], **options))
    assert outcome.text == "one, two, three, four, "
    assert [item.token_id for item in outcome.logprobs] == outcome.token_ids
    for item in outcome.logprobs:
        assert -1 < item.logprob <= 0
        assert len(item.alternatives) == count
        assert sum(math.exp(other.logprob) for other in item.alternatives) <= 1 + 1e-3
        if count:
            assert (item.alternatives[0].token_id, item.alternatives[0].logprob) == (item.token_id, item.logprob)


def test_s13_log_probabilities_of_the_prompt(service: Stack) -> None:
    prompt = "an untidy prompt of some length"
    options = {"model": "chatty", "max_tokens": 2, "prompt_logprobs": 2, "ignore_end_of_text": True}
    whole, joined = (call(service, request(prompt, **options)) for call in (unary, stream))
    assert whole.response is not None
    assert [item.token_id for item in joined.prompt_logprobs] == list(prompt.encode()[1:])
    assert all(item.logprob <= 0 and len(item.alternatives) == 2 for item in joined.prompt_logprobs)
    values = [[item.logprob for item in items] for items in (joined.prompt_logprobs, whole.response.prompt_logprobs)]
    assert values[0] == pytest.approx(values[1], abs=1e-4)


@pytest.mark.parametrize("stops", [[f"zz{number:04d}" for number in range(5000)], [""], ["ok", ""]])
def test_s14_too_many_or_empty_stop_sequences_are_refused(service: Stack, stops: list[str]) -> None:
    outcome = unary(service, request("hi", model="book", max_tokens=4, stop_sequences=stops))
    assert outcome.code.name == "INVALID_ARGUMENT"
    assert outcome.fields[0].startswith("stopping.stop_sequences")
