"""An answer that was cut anywhere and goes on in another call is the answer that was never cut."""

from collections.abc import Sequence

import pytest

from support import case_models
from support.client import Outcome, request, stream
from support.processes import Stack
from support.tokenizers import END_OF_TEXT_ID


def resumed(service: Stack, whole: Outcome, count: int, prompt: str | Sequence[int], **options: object) -> Outcome:
    """Another call for what comes behind the first ``count`` tokens of ``whole``."""
    assert whole.started is not None
    message = request(prompt, token_ids=True, **options)
    message.resume.emitted_token_ids.extend(whole.token_ids[:count])
    message.resume.seed = whole.started.seed
    return stream(service, message)


def check_every_cut(service: Stack, prompt: str | Sequence[int], **options: object) -> None:
    whole = stream(service, request(prompt, token_ids=True, **options))
    assert whole.ok, whole.message
    assert whole.token_count > 2
    received, count = "", 0
    for delta in whole.deltas:
        if not delta.token_count:
            continue  # the text that was held back until the end
        received, count = received + delta.text, count + delta.token_count
        rest = resumed(service, whole, count, prompt, **options)
        assert rest.ok, f"after {count} tokens: {rest.code.name}: {rest.message}"
        assert received + rest.text == whole.text
        assert whole.token_ids[:count] + rest.token_ids == whole.token_ids
        assert rest.finished == whole.finished
        assert rest.usage.completion_tokens == len(whole.token_ids) - count


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("name", ["many languages", "half a character", "italian", "special inside", "numbers"])
@pytest.mark.parametrize("max_tokens", [7, 20])
def test_a_cut_inside_characters_and_at_the_end(service: Stack, name: str, max_tokens: int) -> None:
    check_every_cut(service, case_models.page(name).prompt, model="book", max_tokens=max_tokens)


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("stop", ["three, f", "six!", "one, two, three, four, five, six and more", "中文"])
def test_a_cut_inside_and_behind_a_stop_sequence(service: Stack, stop: str) -> None:
    name = "many languages" if stop == "中文" else "numbers"
    check_every_cut(service, case_models.page(name).prompt, model="book", max_tokens=60, stop_sequences=[stop])


@pytest.mark.usefixtures("alive")
def test_a_cut_between_word_pieces(service: Stack) -> None:
    check_every_cut(service, [3] * 6, model="spaced", max_tokens=20)
    check_every_cut(service, [3] * 6, model="spaced", max_tokens=20, stop_sequences=[" hope"])


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("seed", [0, 2**64 - 1, 7])
def test_a_cut_of_a_sampled_answer(service: Stack, seed: int) -> None:
    check_every_cut(service, "hello", model="chatty", max_tokens=20, temperature=1.0, seed=seed)


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize(
    ("emitted", "options", "field"),
    [
        ([65, END_OF_TEXT_ID, 66], {}, "request.resume.emitted_token_ids[1]"),
        ([65, 66], {"stop_token_ids": [66]}, "request.resume.emitted_token_ids[1]"),
        ([65] * 4, {"max_tokens": 3}, "request.resume.emitted_token_ids"),
        ([999], {}, "request.resume.emitted_token_ids"),
        ([65] * 1020, {}, "request.resume.emitted_token_ids"),
    ],
)
def test_what_no_answer_can_have_held_is_refused(
    service: Stack, emitted: list[int], options: dict[str, object], field: str
) -> None:
    message = request(case_models.page("numbers").prompt, model="book", **options)
    message.resume.emitted_token_ids.extend(emitted)
    outcome = stream(service, message)
    assert (outcome.code.name, outcome.fields) == ("INVALID_ARGUMENT", [field])
