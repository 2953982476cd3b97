"""Stop sequences over text that arrives in pieces of any size."""

import re
from collections.abc import Sequence
from functools import lru_cache

MAX_STOP_SEQUENCES = 16
MAX_STOP_CHARACTERS = 1024


@lru_cache(maxsize=1024)
def _failure(pattern: str) -> tuple[int, ...]:
    """For each prefix of ``pattern``, the length of its longest proper border (Knuth, Morris and Pratt 1977)."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        table[index] = length
    return tuple(table)


class _Pattern:
    """One sequence, and how much of it the text so far ends with."""

    __slots__ = ("failure", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.failure = _failure(text)
        self.matched = 0

    def find_end(self, piece: str, limit: int) -> int | None:
        """Index in ``piece``, at most ``limit``, where the first match ends; None when it does not end there."""
        pattern, failure, matched = self.text, self.failure, self.matched
        index = 0
        while index < limit:
            if not matched:
                index = piece.find(pattern[0], index, limit)
                if index < 0:
                    break
                matched = 1
            else:
                char = piece[index]
                while matched and pattern[matched] != char:
                    matched = failure[matched - 1]
                if pattern[matched] == char:
                    matched += 1
            index += 1
            if matched == len(pattern):
                return index
        self.matched = matched
        return None


class StopMatcher:
    """Lets text through up to the first stop sequence.

    The sequence that is complete first wins; of several complete at the same character, the longest. So the result does
    not depend on how the text is cut into pieces, and a match is known as soon as its last character is there. Each
    character costs amortised constant time per sequence.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        """Raises ValueError for an empty sequence."""
        if not all(sequences):
            raise ValueError("a stop sequence is empty")
        self._patterns = [_Pattern(text) for text in dict.fromkeys(sequences)]
        first_chars = "|".join(re.escape(char) for char in sorted({text[0] for text in sequences}))
        self._may_begin = re.compile(first_chars).search
        self._held = ""
        self._found: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Take the next text; return what may be sent now and the stop sequence that ended the answer, or None.

        What is held back is exactly the longest end of the text that may still become a stop sequence. After a match
        nothing more comes out.
        """
        if self._found is not None:
            return "", self._found
        if not self._patterns or (not self._held and not self._may_begin(text)):
            return text, None
        limit = len(text)
        best: _Pattern | None = None
        for pattern in self._patterns:
            end = pattern.find_end(text, limit)
            if end is not None and (best is None or end < limit or len(pattern.text) > len(best.text)):
                best, limit = pattern, end
        if best is not None:
            safe = (self._held + text[:limit])[: -len(best.text)]
            self._held, self._found = "", best.text
            return safe, best.text
        text = self._held + text
        keep = max(pattern.matched for pattern in self._patterns)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """The text still held back: call it when the answer ends without a match."""
        held, self._held = self._held, ""
        return held
