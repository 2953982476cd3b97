"""Keeps special-token text in messages plain text (no turn can be forged from within a message).

While a conversation is laid out, a *breaker* (a noncharacter that occurs in no message) stands in front of, or inside,
every special-token text that a message's own characters take part in. The laid-out text is then split at the special
tokens without a breaker, which only the template can have written.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """An added token matched before anything else; ``lstrip`` and ``rstrip`` take neighbouring white space with it."""

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


def free_noncharacters(texts: Sequence[str]) -> tuple[str, str] | None:
    """Two noncharacters that occur in none of ``texts``, or None."""
    free = (char for char in _NONCHARACTERS if not any(char in text for text in texts))
    first, second = next(free, None), next(free, None)
    return (first, second) if first and second else None


class SpecialText:
    """Finds, breaks and splits at the special tokens of one tokenizer."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        ordered = sorted((token for token in tokens if token.text), key=lambda token: -len(token.text))
        self._by_text = {token.text: token for token in ordered}
        self._any = re.compile("|".join(re.escape(token.text) for token in ordered)) if ordered else None
        self._starts = re.compile(f"(?={self._any.pattern})") if self._any else None
        self._longest = len(ordered[0].text) if ordered else 0
        self._prefixes = {token.text[:size] for token in ordered for size in range(1, len(token.text))}
        self._suffixes = {token.text[size:] for token in ordered for size in range(1, len(token.text))}
        self._tokens = ordered

    def occurs_in(self, text: str) -> bool:
        return bool(self._any and self._any.search(text))

    def break_up(self, text: str, breaker: str) -> str:
        """``text`` with breakers, so that no special token of the laid-out text can hold any of its characters."""
        if self._starts is None or not text:
            return text
        window = range(1, min(self._longest, len(text) + 1))
        # Special text that would begin in this message and end after it, or begin before it and end in it.
        ends = {len(text) - size for size in window if text[-size:] in self._prefixes}
        if any(text[:size] in self._suffixes for size in window) or self._inside(text):
            ends.add(0)
        starts = {match.start() for match in self._starts.finditer(text)} | ends
        if not starts:
            return text
        cuts = sorted(starts)
        pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        return breaker.join(pieces)

    def _inside(self, text: str) -> bool:
        """Whether the whole of ``text`` is the middle of a special token."""
        return len(text) < self._longest and any(text in token.text for token in self._tokens)

    def split(self, text: str, breaker: str) -> list[str | SpecialToken]:
        """``text`` cut at special tokens that no breaker precedes; breakers removed; no empty pieces."""
        pieces: list[str | SpecialToken] = []
        begin = position = 0
        while self._any is not None and (match := self._any.search(text, position)):
            token = self._by_text[match.group()]
            start, end = match.span()
            if text[start - 1 : start] == breaker or (token.single_word and not _alone(text, start, end)):
                position = start + 1
                continue
            before = text[begin:start]
            pieces += [before.rstrip() if token.lstrip else before, token]
            if token.rstrip:
                while text[end : end + 1].isspace():
                    end += 1
            begin = position = end
        pieces.append(text[begin:])
        plain = [piece.replace(breaker, "") if isinstance(piece, str) else piece for piece in pieces]
        return [piece for piece in plain if piece]


def _alone(text: str, start: int, end: int) -> bool:
    """Whether no letter, digit or underscore touches ``text[start:end]``."""
    around = text[max(0, start - 1) : start] + text[end : end + 1]
    return not any(char.isalnum() or char == "_" for char in around)
