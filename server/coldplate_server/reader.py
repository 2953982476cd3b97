"""Turns the tokens of one choice into text as its caller reads them."""

from coldplate_server.events import Delta
from coldplate_server.journal import StreamRecord
from coldplate_server.request import GenerationRequest
from coldplate_server.result import ChoiceEnd, FinishReason
from coldplate_server.text.reasoning import ThinkingReader
from coldplate_server.text.stop import StopMatcher
from coldplate_server.text.tokenizer import Tokenizer


class Reader:
    """The reading side of one choice: a cursor into the journal, and the state of the text.

    ``end`` is set once a stop sequence has ended the answer, in an earlier call perhaps; tokens behind it are never
    taken.
    """

    def __init__(self, index: int, record: StreamRecord, tokenizer: Tokenizer, request: GenerationRequest) -> None:
        self.index = index
        self.record = record
        self.taken = record.resumed
        self.end: ChoiceEnd | None = None
        self._want_text = request.want_text or bool(request.stop.sequences)
        self._show_text = request.want_text
        self._show_ids = request.want_token_ids
        self._show_logprobs = request.logprobs is not None
        self._detokenizer = tokenizer.detokenizer(special_tokens=request.special_tokens)
        self._stop = StopMatcher(request.stop.sequences) if request.stop.sequences else None
        self._thinking = None
        if record.thinking is not None:
            text = tokenizer.detokenizer(special_tokens=request.special_tokens) if request.want_text else None
            self._thinking = ThinkingReader(record.thinking, text)
        self._skip_space = False  # between the thinking and the answer
        self._reported = record.resumed
        self._thought_before = 0
        if record.emitted:
            self._replay()

    def _replay(self) -> None:
        """Bring the text state to where an earlier call left off; what it had sent is not sent again."""
        self.taken = 0
        while self.unread:
            self.take()
        self.taken = self._reported = self.record.resumed
        self._thought_before = self._thinking.tokens if self._thinking else 0

    @property
    def unread(self) -> bool:
        return self.end is None and self.taken < len(self.record.emitted)

    @property
    def over(self) -> bool:
        """Whether the choice has come to its end and all of it was taken."""
        return self.end is not None or (self.record.end is not None and not self.unread)

    @property
    def tokens(self) -> int:
        """New tokens of this call that belong to the answer and its thinking."""
        return self.taken - self.record.resumed

    @property
    def reasoning_tokens(self) -> int:
        return self._thinking.tokens - self._thought_before if self._thinking else 0

    def take(self) -> Delta | None:
        """All unread tokens as one delta; None while there is nothing to show for them yet."""
        reasoning = ""
        if self._thinking is not None and not self._thinking.over:
            reasoning, count = self._thinking.push(self.record.emitted[self.taken :])
            self.taken += count
            self._skip_space = self._thinking.over and self._thinking.tokens > 0
        return self._delta(self._take_answer(), reasoning)

    def finish(self) -> Delta | None:
        """What was held back when the answer ended."""
        if not self._want_text or self.end is not None:
            return self._delta("", last=True)
        reasoning = self._thinking.finish() if self._thinking and not self._thinking.over else ""
        text = self._of_answer(self._detokenizer.finish())
        if self._stop is not None:
            text, matched = self._stop.push(text)
            self._note_match(matched)
            text += self._stop.flush()
        return self._delta(text, reasoning, last=True)

    def _take_answer(self) -> str:
        emitted = self.record.emitted
        if self._want_text and self._stop is not None:
            return self._take_until_stop(self._stop)
        text = self._of_answer(self._detokenizer.push(emitted[self.taken :])) if self._want_text else ""
        self.taken = len(emitted)
        return text

    def _take_until_stop(self, stop: StopMatcher) -> str:
        parts = []
        for token_id in self.record.emitted[self.taken :]:
            self.taken += 1
            text, matched = stop.push(self._of_answer(self._detokenizer.push((token_id,))))
            parts.append(text)
            self._note_match(matched)
            if self.end is not None:
                break
        return "".join(parts)

    def _of_answer(self, text: str) -> str:
        if self._skip_space:
            text = text.lstrip()
            self._skip_space = not text
        return text

    def _note_match(self, matched: str | None) -> None:
        if matched is not None:
            self.end = ChoiceEnd(FinishReason.STOP_SEQUENCE, stop_sequence=matched)

    def _delta(self, text: str, reasoning: str = "", *, last: bool = False) -> Delta | None:
        first, count = self._reported, self.taken - self._reported
        if not self._show_text:
            text = reasoning = ""
        by_token = self._show_ids or self._show_logprobs
        if not (text or reasoning) and not (count and (by_token or last or not self._show_text)):
            return None
        self._reported = self.taken
        resumed = self.record.resumed
        return Delta(
            choice_index=self.index,
            first_token_index=first,
            token_count=count,
            text=text,
            reasoning_text=reasoning,
            token_ids=self.record.emitted[first : self.taken] if self._show_ids else [],
            logprobs=self.record.logprobs[first - resumed : self.taken - resumed] if self._show_logprobs else [],
        )
