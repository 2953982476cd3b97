"""What a modelled chip says: tokens that follow from the tokens before them, known to whoever knows those.

The token behind a sequence is picked by a hash over all of it, one token at a time, so the state behind each position
can lie in a cache and a stream goes on elsewhere from its tokens alone. Neither seed nor temperature changes it.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_FEWEST_WORDS = 16
_MOST_WORDS = 4096
START = 0x9E37_79B9_7F4A_7C15

# A word of lower-case letters with a space before it, as byte-level and SentencePiece vocabularies write it.
_WORD = re.compile(r"[\u0120\u2581][a-z]{2,}")
_LETTER = re.compile(r"[a-z]")


class Script:
    """Sequences over ``words``, the token ids it is made of."""

    def __init__(self, words: Sequence[int]) -> None:
        if not words:
            raise ValueError("a script needs at least one token")
        self.words = list(words)

    @staticmethod
    def absorb(state: int, token: int) -> int:
        """The state behind one more token. The mixer is SplitMix64's finaliser."""
        z = (state + (token + 1) * START) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
        return z ^ (z >> 31)

    def next(self, state: int) -> int:
        """The token that follows where the state is ``state``."""
        return self.words[(state >> 16) % len(self.words)]

    def answer(self, prompt: Iterable[int], count: int) -> list[int]:
        """The ``count`` tokens behind ``prompt``."""
        state = START
        for token in prompt:
            state = self.absorb(state, token)
        said: list[int] = []
        for _ in range(count):
            said.append(self.next(state))
            state = self.absorb(state, said[-1])
        return said


def script_of(folder: Path, vocabulary: int, end_of_text: frozenset[int]) -> Script:
    """The script of a model: words of its tokenizer where it has some, else letters, else all that ends nothing."""
    named = _tokens(folder)
    for pattern in (_WORD, _LETTER):
        words = sorted(i for text, i in named.items() if i < vocabulary and pattern.fullmatch(text))
        if len(words) >= _FEWEST_WORDS:
            return Script(words[:_MOST_WORDS])
    return Script([i for i in range(vocabulary) if i not in end_of_text])


def _tokens(folder: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        return {}
    return dict(Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=False))
