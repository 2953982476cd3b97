"""Turns the tokens of one stream into text as its caller reads them."""

import asyncio

from coldplate.clock import Clock
from coldplate_server.events import Delta
from coldplate_server.journal import StreamRecord
from coldplate_server.request import GenerationRequest
from coldplate_server.result import ChoiceEnd, FinishReason
from coldplate_server.text.stop import StopMatcher
from coldplate_server.text.tokenizer import Tokenizer


class Reader:
    """The reading side of one stream: a cursor into the journal, the detokeniser's and the stop matcher's state.

    ``end`` is set once a stop sequence has ended the answer, in an earlier call perhaps; tokens behind it are never
    taken.
    """

    def __init__(self, record: StreamRecord, tokenizer: Tokenizer, request: GenerationRequest, clock: Clock) -> None:
        self.record = record
        self.taken = record.resumed
        self.end: ChoiceEnd | None = None
        self._want_text = request.want_text or bool(request.stop.sequences)
        self._show_text = request.want_text
        self._show_ids = request.want_token_ids
        self._detokenizer = tokenizer.detokenizer(special_tokens=request.special_tokens)
        self._stop = StopMatcher(request.stop.sequences) if request.stop.sequences else None
        self._reported = record.resumed
        self._changed = asyncio.Event()
        record.wake = self._changed.set
        if record.emitted:
            self._replay()

    def _replay(self) -> None:
        """Bring the text state to where an earlier call left off; what it had sent is not sent again."""
        text = self._detokenizer.push(self.record.emitted)
        if self._stop is not None:
            self._note_match(self._stop.push(text)[1])

    @property
    def unread(self) -> bool:
        return self.end is None and self.taken < len(self.record.emitted)

    async def changed(self, timeout_s: float | None) -> bool:
        """Wait for news of the stream; False when none came in time."""
        if timeout_s is None:
            await self._changed.wait()
        else:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                return False
        self._changed.clear()
        return True

    def take(self) -> Delta | None:
        """All unread tokens as one delta; None while there is nothing to show for them yet."""
        emitted = self.record.emitted
        if not self._want_text:
            text, self.taken = "", len(emitted)
        elif self._stop is None:
            text = self._detokenizer.push(emitted[self.taken :])
            self.taken = len(emitted)
        else:
            text = self._take_until_stop(self._stop)
        return self._delta(text)

    def finish(self) -> Delta | None:
        """What was held back when the answer ended."""
        if not self._want_text or self.end is not None:
            return self._delta("", last=True)
        text = self._detokenizer.finish()
        if self._stop is not None:
            text, matched = self._stop.push(text)
            self._note_match(matched)
            text += self._stop.flush()
        return self._delta(text, last=True)

    def _take_until_stop(self, stop: StopMatcher) -> str:
        parts = []
        for token_id in self.record.emitted[self.taken :]:
            self.taken += 1
            text, matched = stop.push(self._detokenizer.push((token_id,)))
            parts.append(text)
            self._note_match(matched)
            if self.end is not None:
                break
        return "".join(parts)

    def _note_match(self, matched: str | None) -> None:
        if matched is not None:
            self.end = ChoiceEnd(FinishReason.STOP_SEQUENCE, stop_sequence=matched)

    def _delta(self, text: str, *, last: bool = False) -> Delta | None:
        first, count = self._reported, self.taken - self._reported
        shown = text if self._show_text else ""
        if not shown and not (count and (self._show_ids or last or not self._show_text)):
            return None
        self._reported = self.taken
        return Delta(first, count, shown, self.record.emitted[first : self.taken] if self._show_ids else [])
