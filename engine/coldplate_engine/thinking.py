"""Where a thinking model stands between thinking and answer, and what closes its thinking when the budget is spent."""

from collections.abc import Sequence
from enum import Enum

from coldplate_engine.messages import Thinking


class Phase(Enum):
    UNDECIDED = "undecided"  # the first token tells whether the model thinks
    THINKING = "thinking"
    CLOSING = "closing"  # behind the end marker, but the closing text goes on
    ANSWER = "answer"


class ThinkingState:
    """Follows one stream's output, token by token.

    Thinking is from the start (``open``, or the start marker as the very first token) to the end marker; it happens
    once. When as many tokens as the budget, or as ``cap``, have been thought, ``close_ids`` are forced one by one.
    What of them lies behind the end marker is forced after an end of the model's own, too, when ``always_closed``:
    then the answer begins behind it in every case.
    """

    def __init__(self, thinking: Thinking, emitted: Sequence[int], always_closed: bool) -> None:
        self._thinking = thinking
        self._always_closed = always_closed
        self._closing = 0  # how many of close_ids are out
        self._overlap = 0  # how many of them a resumed stream ends with
        self._count = 0
        self._end_at = thinking.close_ids.index(thinking.end_id) if thinking.close_ids else 0
        self.cap: int | None = None
        self.phase = Phase.THINKING if thinking.open else Phase.UNDECIDED
        self.answer_start = self._replay(emitted)

    def forced(self, ahead: int = 0) -> int | None:
        """The token that must come ``ahead`` places after the next one, if all before it are as forced or thought."""
        close = self._thinking.close_ids
        if self.phase is Phase.CLOSING or (self.phase is Phase.THINKING and self._closing):
            at = self._closing + ahead
        elif self.phase is Phase.THINKING and (limit := self._limit()) is not None:
            left = limit - self._count
            at = ahead - left if left > 0 else self._overlap + ahead
        else:
            return None
        return close[at] if 0 <= at < len(close) else None

    def takes(self, token: int) -> bool:
        """Whether ``token``, coming next, belongs to the answer."""
        if self.phase is Phase.UNDECIDED:
            return token != self._thinking.start_id
        return self.phase is Phase.ANSWER

    def advance(self, token: int) -> None:
        if self.phase is Phase.UNDECIDED:
            self.phase = Phase.ANSWER if self.takes(token) else Phase.THINKING
        elif self.phase is Phase.CLOSING:
            self._closing += 1
            self._leave_closing()
        elif self.phase is Phase.THINKING:
            was_forced = self.forced() is not None
            if was_forced:
                self._closing = (self._closing or self._overlap) + 1
            self._overlap = 0
            self._count += 1
            if token == self._thinking.end_id:
                self._close(was_forced)

    def _limit(self) -> int | None:
        limits = [limit for limit in (self._thinking.budget_tokens, self.cap) if limit is not None]
        return min(limits, default=None)

    def _close(self, was_forced: bool) -> None:
        if not was_forced:
            self._closing = self._end_at + 1 if self._always_closed else len(self._thinking.close_ids)
        self.phase = Phase.CLOSING
        self._leave_closing()

    def _leave_closing(self) -> None:
        if self._closing >= len(self._thinking.close_ids):
            self.phase = Phase.ANSWER

    def _replay(self, emitted: Sequence[int]) -> int:
        """Take the emitted tokens; returns where among them the answer begins (their number: not yet)."""
        begin = 0
        if self.phase is Phase.UNDECIDED and emitted:
            if emitted[0] != self._thinking.start_id:
                self.phase = Phase.ANSWER
                return 0
            self.phase, begin = Phase.THINKING, 1
        if self.phase is Phase.UNDECIDED:
            return 0
        thought = list(emitted[begin:])
        close, head = self._thinking.close_ids, self._thinking.close_ids[: self._end_at]
        if self._thinking.end_id not in thought:
            self._count = len(thought)
            longest = min(len(head), len(thought))
            self._overlap = next((k for k in range(longest, 0, -1) if tuple(thought[-k:]) == head[:k]), 0)
            return len(emitted)
        end = thought.index(self._thinking.end_id)
        self._count = end + 1
        budget = self._thinking.budget_tokens
        was_forced = tuple(thought[max(0, end - len(head)) : end]) == head and (
            len(head) > 0 or (budget is not None and end >= budget)
        )
        rest, tail = thought[end + 1 :], close[self._end_at + 1 :]
        if tuple(rest[: len(tail)]) == tail:
            self.phase = Phase.ANSWER
            return begin + end + 1 + len(tail)
        if tuple(rest) == tail[: len(rest)] and (was_forced or self._always_closed):
            self.phase, self._closing = Phase.CLOSING, self._end_at + 1 + len(rest)
            return len(emitted)
        self.phase = Phase.ANSWER
        return begin + end + 1
