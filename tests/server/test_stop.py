"""Stop sequences: D7, D8, D10 and the same result however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate_server.text.stop import StopMatcher

SEQUENCES = st.lists(st.text("ab", min_size=1, max_size=6), min_size=0, max_size=4)


def run(sequences: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(sequences)
    text, found = "", None
    for piece in pieces:
        safe, found = matcher.push(piece)
        text += safe
    return text + matcher.flush(), found


def by_definition(sequences: list[str], text: str) -> tuple[str, str | None]:
    """The first end at which any sequence is complete, and the longest of those."""
    for end in range(1, len(text) + 1):
        complete = [sequence for sequence in sequences if text[:end].endswith(sequence)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(SEQUENCES, st.lists(st.text("abc", max_size=8), max_size=8))
def test_any_split_gives_what_the_definition_says(sequences: list[str], pieces: list[str]) -> None:
    assert run(sequences, pieces) == by_definition(sequences, "".join(pieces))


@given(SEQUENCES, st.text("abc", max_size=30))
def test_only_what_may_still_match_is_held_back(sequences: list[str], text: str) -> None:
    matcher = StopMatcher(sequences)
    sent = ""
    for index, char in enumerate(text):
        safe, found = matcher.push(char)
        sent += safe
        if found is not None:
            return
        seen = text[: index + 1]
        held = max((k for s in sequences for k in range(len(s)) if seen.endswith(s[:k])), default=0)
        assert sent == seen[: len(seen) - held]


def test_nothing_of_a_stop_sequence_is_sent() -> None:
    assert run(["DEFGHIJ"], list("ABCDEFGHIJKLM")) == ("ABC", "DEFGHIJ")


def test_held_text_comes_out_at_the_end() -> None:
    matcher = StopMatcher(["TRE\nAAAA"])
    assert matcher.push("UNO DUE TRE") == ("UNO DUE ", None)
    assert matcher.flush() == "TRE"


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [(["five"], ("one, two, three, four, ", "five")), (["three", "five"], ("one, two, ", "three"))],
)
def test_no_text_leaks_after_the_match(sequences: list[str], expected: tuple[str, str]) -> None:
    assert run(sequences, list("one, two, three, four, five, six")) == expected
    assert run(sequences, ["one, two, three, four, five, six"]) == expected


def test_of_sequences_complete_together_the_longest_wins() -> None:
    assert run(["\n", "##\n"], ["text##\nmore"]) == ("text", "##\n")


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
