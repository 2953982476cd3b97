"""Where the last few tokens of a stream came before, found without searching."""

from array import array
from collections.abc import Sequence

_CANDIDATES = 16


class NgramIndex:
    """Grows with a stream's tokens: constant work and about 150 bytes a token.

    Matches are of ``shortest`` to ``longest`` tokens; the longest among the latest 16 wins, of equals the latest.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"matches of {shortest} to {longest} tokens: expected 1 or more, in this order")
        self._shortest, self._longest = shortest, longest
        self._latest: dict[int, int] = {}  # hash of the shortest match -> position behind its latest occurrence
        self._earlier = array("l")  # for each position from ``shortest`` on: the occurrence before, or -1

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """``count`` tokens that followed what ``tokens`` end with, or none. ``tokens`` only ever grow."""
        self._grow(tokens)
        at = self._find(tokens)
        guesses: list[int] = []
        if at is not None:
            for place in range(at, at + count):
                # Behind the last token a repetition goes on with itself.
                guesses.append(tokens[place] if place < len(tokens) else guesses[place - len(tokens)])
        return guesses

    def _grow(self, tokens: Sequence[int]) -> None:
        size = self._shortest
        for behind in range(size + len(self._earlier), len(tokens)):
            key = hash(tuple(tokens[behind - size : behind]))
            self._earlier.append(self._latest.get(key, -1))
            self._latest[key] = behind

    def _find(self, tokens: Sequence[int]) -> int | None:
        size = self._shortest
        if len(tokens) <= size:
            return None
        best, best_length = None, size - 1
        at = self._latest.get(hash(tuple(tokens[-size:])), -1)
        for _ in range(_CANDIDATES):
            if at < 0 or best_length == self._longest:
                break
            length = self._common(tokens, at)
            if length > best_length:
                best, best_length = at, length
            at = self._earlier[at - size]
        return best

    def _common(self, tokens: Sequence[int], at: int) -> int:
        """How many tokens before position ``at`` equal those before the end."""
        end = len(tokens)
        for length in range(min(self._longest, at)):
            if tokens[at - 1 - length] != tokens[end - 1 - length]:
                return length
        return min(self._longest, at)
