"""Area 1: text made from tokens while they stream."""

import pytest

from support.case_models import page
from support.client import Alive, Outcome, both, request
from support.processes import Stack

pytestmark = pytest.mark.usefixtures("alive")
REPLACEMENT = "\ufffd"


def answer(service: Stack, name: str, **options: object) -> Outcome:
    """The book's answer ``name``, streamed and unary."""
    return both(service, request(page(name).prompt, model="book", **options))


def test_d1_no_split_character_reaches_the_client(service: Stack) -> None:
    outcome = answer(service, "many languages", max_tokens=64)
    assert outcome.text == "ďábel 中文 😀🤣"
    assert outcome.finish == "END_OF_TEXT"
    assert all(REPLACEMENT not in delta.text for delta in outcome.deltas)


def test_d3_undecodable_output_streams_at_once_and_in_linear_time(service: Stack, alive: Alive) -> None:
    outcome = both(service, request("x" * 8, model="undecodable", max_tokens=1500))
    assert outcome.finish == "MAX_TOKENS"
    assert outcome.token_count == 1500
    first = next(at for at, delta in enumerate(outcome.deltas) if delta.text)
    assert sum(delta.token_count for delta in outcome.deltas[: first + 1]) <= 16
    assert _seconds_per_token(outcome, 1050, 1450) <= 3 * _seconds_per_token(outcome, 50, 450)


def _seconds_per_token(outcome: Outcome, first: int, last: int) -> float:
    """Mean over the tokens from index ``first`` to ``last``, by when the deltas that hold them came."""
    times = []
    for index in (first, last):
        at = next(at for at, delta in enumerate(outcome.deltas) if delta.first_token_index + delta.token_count > index)
        times.append(outcome.delta_times[at])
    return (times[1] - times[0]) / (last - first)


def test_d4_half_a_character_before_a_space(service: Stack) -> None:
    outcome = answer(service, "half a character", max_tokens=16)
    assert outcome.text == f"{REPLACEMENT} ok"
    assert outcome.finish == "END_OF_TEXT"


def test_d4_an_answer_cut_inside_a_character(service: Stack) -> None:
    outcome = answer(service, "two characters", max_tokens=4)
    assert outcome.text in ("中", f"中{REPLACEMENT}")
    assert outcome.finish == "MAX_TOKENS"


def test_d5_spaces_between_word_pieces(service: Stack) -> None:
    outcome = both(service, request([5] * 6, model="spaced", max_tokens=16))
    assert outcome.text == "Dear Name, I hope"
    assert outcome.finish == "END_OF_TEXT"


def test_d7_nothing_of_a_stop_sequence_is_sent(service: Stack) -> None:
    outcome = answer(service, "letters", max_tokens=13, stop_sequences=["DEFGHIJ"])
    assert outcome.text == "ABC"
    assert outcome.finish == "STOP_SEQUENCE"
    assert outcome.finished is not None
    assert outcome.finished.stop_sequence == "DEFGHIJ"


def test_d8_text_held_back_for_a_stop_sequence_comes_at_the_end(service: Stack) -> None:
    outcome = answer(service, "italian", max_tokens=32, stop_sequences=["TRE\nAAAA"])
    assert outcome.text == "UNO DUE TRE"
    assert outcome.finish == "END_OF_TEXT"


@pytest.mark.parametrize(
    ("stops", "expected"), [(["five"], "one, two, three, four, "), (["three", "five"], "one, two, ")]
)
def test_d10_nothing_behind_the_stop_leaks(service: Stack, stops: list[str], expected: str) -> None:
    outcome = answer(service, "numbers", max_tokens=32, stop_sequences=stops)
    assert outcome.text == expected
    assert outcome.finish == "STOP_SEQUENCE"


def test_d11_special_tokens_show_only_when_asked_for(service: Stack) -> None:
    assert answer(service, "special inside", max_tokens=8).text == "ab"
    shown = answer(service, "special inside", max_tokens=8, special_tokens=True).text
    assert shown.startswith("a<|im_end|>b")
