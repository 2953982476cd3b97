"""The thinking in front of an answer: which tokens are of it, and its text.

Thinking goes from the start mark, which the prompt may have written already, to the end mark. A model thinks at most
once, first of all: where its first token is no start mark, everything is answer, later marks included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coldplate_server.text.detokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """Token ids of one model. ``close_ids``, the end mark among them, end the thinking in the model's own way."""

    start_id: int
    end_id: int
    close_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Thinking:
    """How one answer may begin. ``open``: the prompt has written the start mark."""

    marks: ThinkingMarks
    open: bool = False
    budget_tokens: int | None = None


class ThinkingReader:
    """Takes tokens as they come until the answer begins.

    ``tokens`` counts those of the thinking, marks included; ``over`` is set once the rest is answer.
    """

    def __init__(self, thinking: Thinking, detokenizer: Detokenizer | None) -> None:
        """Without a detokenizer the thinking has no text."""
        self._thinking = thinking
        self._detokenizer = detokenizer
        self._begun = thinking.open
        self._space = ""
        self._shown = False
        self.tokens = 0
        self.over = False

    def push(self, ids: Sequence[int]) -> tuple[str, int]:
        """The new text of the thinking, and how many of ``ids`` belong to it; those behind them are answer."""
        if not ids or self.over:
            return "", 0
        begin, marks = 0, self._thinking.marks
        if not self._begun:
            self._begun = True
            if ids[0] != marks.start_id:
                self.over = True
                return "", 0
            begin = 1
        end = next((at for at in range(begin, len(ids)) if ids[at] == marks.end_id), len(ids))
        text = self._trim(self._detokenizer.push(ids[begin:end])) if self._detokenizer else ""
        taken = min(end + 1, len(ids))
        self.tokens += taken
        if end < len(ids):
            text += self.finish()
            self.over = True
        return text, taken

    def finish(self) -> str:
        """What was still undecided when the thinking ended."""
        return self._trim(self._detokenizer.finish()) if self._detokenizer else ""

    def _trim(self, text: str) -> str:
        """Without white space at the start, and with that at the end kept back until more text follows."""
        text = self._space + text
        if not self._shown:
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        self._shown = self._shown or bool(kept)
        return kept
