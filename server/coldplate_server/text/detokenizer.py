"""Text from token ids as they come, at a constant cost per token."""

from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from typing import Protocol

from coldplate_server.text.pieces import PieceTable

_REPLACEMENT = "\ufffd"
# A character takes at most 4 byte tokens, so a longer tail that still ends in U+FFFD is not waiting for anything.
_MAX_UNDECIDED_TOKENS = 8
# Tokens before the undecided ones that are decoded again with them, so that the decoder sees them in context.
_CONTEXT_TOKENS = 4


class Detokenizer(Protocol):
    """Turns ids into text. Pushed texts and ``finish()`` joined are the text of all ids, whatever the pieces."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that is certain with these ids; never half a character."""
        ...

    def finish(self) -> str:
        """What was still undecided: an incomplete character becomes one U+FFFD."""
        ...


class TableDetokenizer:
    """For decoders that treat tokens one by one: a look-up per token and an incremental UTF-8 decoder.

    Ids outside the table add nothing.
    """

    __slots__ = ("_entries", "_pending", "_settled", "_started", "_strip", "_table")

    def __init__(self, table: PieceTable) -> None:
        self._table = table
        self._entries = table.entries
        self._pending = b""
        self._strip = table.strip
        self._started = table.first is None
        # Settled: no incomplete character and nothing special about the start any more.
        self._settled = self._started and not self._strip

    def push(self, ids: Sequence[int]) -> str:
        if self._settled and len(ids) == 1:
            try:
                entry = self._entries[ids[0]]
            except IndexError:
                return ""
            if entry.__class__ is str:
                return entry
        text = "".join([self._piece(index) for index in ids])
        if self._strip and text:
            text = self._strip_start(text)
        self._settled = self._started and not self._strip and not self._pending
        return text

    def finish(self) -> str:
        text = self._pending.decode(errors="replace")
        self._pending = b""
        return text

    def _piece(self, index: int) -> str:
        if index >= len(self._entries):
            return ""
        entry = self._entries[index]
        if not self._started and index not in self._table.skipped:
            self._started = True
            assert self._table.first is not None
            return self._table.first(index)
        if not entry:
            return ""
        if isinstance(entry, str):
            # Whole characters cannot complete a pending one: those bytes are lost.
            return self.finish() + entry
        data = self._pending + entry
        text, consumed = utf_8_decode(data, "replace", False)
        self._pending = data[consumed:]
        return text

    def _strip_start(self, text: str) -> str:
        while self._strip and text:
            if text[0] != self._table.strip_char:
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


class WindowDetokenizer:
    """For any other decoder: decodes a short window again at each token and sends what has grown.

    The window is at most a dozen tokens, so the cost per token is bounded.
    """

    __slots__ = ("_decode", "_sent", "_undecided", "_window")

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._undecided = 0
        self._sent = ""

    def push(self, ids: Sequence[int]) -> str:
        return "".join([self._step(index) for index in ids])

    def finish(self) -> str:
        text = self._decode(self._window)[len(self._sent) :]
        self._window, self._undecided, self._sent = [], 0, ""
        return text

    def _step(self, index: int) -> str:
        self._window.append(index)
        self._undecided += 1
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT) and self._undecided < _MAX_UNDECIDED_TOKENS:
            return ""
        if not text.startswith(self._sent):
            # The decoder took back something that was sent, such as a space before a mark: wait until it settles.
            if self._undecided < _MAX_UNDECIDED_TOKENS:
                return ""
            self._sent = text
        new = text[len(self._sent) :]
        self._undecided = 0
        self._window = self._window[-_CONTEXT_TOKENS:]
        self._sent = self._decode(self._window)
        return new
