"""What shapes one stream's next token beyond temperature and cuts: bias, penalties, stops, thinking, constraint."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coldplate_engine.guided.guide import ConstraintError, Guide
from coldplate_engine.guided.mask import FORBIDDEN, keep
from coldplate_engine.messages import EngineError, Finished, StopCause, Submission
from coldplate_engine.penalties import TokenCounts
from coldplate_engine.thinking import Phase, ThinkingState

Row = NDArray[np.float32]


def needs_rules(submission: Submission) -> bool:
    """Whether a stream's next token depends on more than its row of logits and its sampling."""
    return (
        submission.sampling.penalises
        or bool(submission.sampling.logit_bias)
        or submission.min_tokens > 0
        or submission.thinking is not None
        or submission.constraint is not None
    )


class TokenRules:
    """Kept per stream, token by token; everything here follows from the submission and the tokens so far.

    Rows are float32 [vocabulary], changed in place in this order: bias, penalties, constraint, stops. ``guide`` is
    set before the first row of a constrained stream.
    """

    def __init__(self, submission: Submission, end_of_text: frozenset[int]) -> None:
        self._submission = submission
        self._counts: TokenCounts | None = None
        self._bias_ids = np.array([token for token, _ in submission.sampling.logit_bias], dtype=np.int64)
        self._bias = np.array([value for _, value in submission.sampling.logit_bias], dtype=np.float32)
        self._ends = submission.stop_ids & end_of_text
        self.guide: Guide | None = None
        self.thinking: ThinkingState | None = None
        if submission.thinking is not None:
            constrained = submission.constraint is not None
            self.thinking = ThinkingState(submission.thinking, submission.emitted_ids, constrained)

    @property
    def answer_ids(self) -> tuple[int, ...]:
        """The emitted tokens that belong to the answer, for the grammar to begin behind."""
        start = 0 if self.thinking is None else self.thinking.answer_start
        return self._submission.emitted_ids[start:]

    @property
    def answering(self) -> bool:
        """Whether the next token may belong to the answer."""
        return self.thinking is None or self.thinking.phase in (Phase.ANSWER, Phase.UNDECIDED)

    def cap_thinking(self, tokens: int | None) -> None:
        if self.thinking is not None:
            self.thinking.cap = tokens

    def forced(self, ahead: int) -> int | None:
        """The token that must come ``ahead`` places after the next one, whatever the logits."""
        return None if self.thinking is None else self.thinking.forced(ahead)

    def edits(self, position: int) -> bool:
        """Whether the row of output token ``position`` must be changed."""
        submission = self._submission
        return (
            submission.sampling.penalises
            or len(self._bias) > 0
            or submission.constraint is not None
            or position < submission.min_tokens
        )

    def edit(self, row: Row, tokens: Sequence[int], drafts: Sequence[int], position: int) -> None:
        """Change the row behind ``tokens`` (prompt and output) and ``drafts``. Raises ConstraintError."""
        if len(self._bias):
            row[self._bias_ids] += self._bias
        if self._submission.sampling.penalises:
            self._penalise(row, tokens, drafts)
        if self.guide is not None and self.answering:
            self._constrain(row, drafts)
        if position < self._submission.min_tokens or (self.guide is not None and not self.answering):
            self._forbid_stops(row)

    def is_stop(self, token: int) -> bool:
        """Whether ``token``, coming next, ends the stream. The caller's own stops do not count inside the thinking."""
        if not self.answering:
            return token in self._ends
        return token in self._submission.stop_ids or (self.guide is not None and token in self.guide.end_ids)

    def usable_drafts(self, drafts: list[int]) -> list[int]:
        """The first of ``drafts`` that can come: no stops, no turn from thinking to answer, within the grammar."""
        marks = self._submission.stop_ids
        if self._submission.thinking is not None and not self.answering:
            marks = marks | {self._submission.thinking.end_id}
        if self.thinking is not None and (
            self.thinking.phase in (Phase.UNDECIDED, Phase.CLOSING) or self.forced(0) is not None
        ):
            return []
        drafts = drafts[: next((i for i, token in enumerate(drafts) if token in marks), len(drafts))]
        if self.guide is not None and self.answering:
            ends = self.guide.end_ids
            drafts = drafts[: next((i for i, token in enumerate(drafts) if token in ends), len(drafts))]
            return drafts[: self.guide.fitting(drafts)]
        return drafts

    def prepare(self, drafts: Sequence[int]) -> None:
        """Begin to compute the masks of the next step."""
        if self.guide is not None and self.answering:
            self.guide.prepare(drafts)

    def accept(self, token: int) -> Finished | None:
        """Take an output token; returns the end when the constraint ends here."""
        belongs = self.thinking is None or self.thinking.takes(token)
        if self.thinking is not None:
            self.thinking.advance(token)
        if self.guide is None or not belongs:
            return None
        stream = self._submission.stream
        try:
            self.guide.advance(token)
        except ConstraintError as error:
            return Finished(stream, StopCause.ERROR, error=EngineError.BAD_CONSTRAINT, error_text=str(error))
        return self.end_of_grammar() if self.guide.complete else None

    def end_of_grammar(self) -> Finished:
        """The end of an answer that is complete, as if the model had said so."""
        assert self.guide is not None
        ends = self.guide.end_ids
        token = min(ends & self._submission.stop_ids or ends, default=0)
        return Finished(self._submission.stream, StopCause.STOP_TOKEN, stop_token_id=token)

    def _penalise(self, row: Row, tokens: Sequence[int], drafts: Sequence[int]) -> None:
        prompt = self._submission.prompt_ids
        if self._counts is None:
            self._counts = TokenCounts(prompt)
        self._counts.advance(tokens)
        for token in drafts:
            self._counts.push(token)
        self._counts.apply(row, self._submission.sampling)
        for token in reversed(drafts):
            self._counts.pop(token)

    def _constrain(self, row: Row, drafts: Sequence[int]) -> None:
        assert self.guide is not None
        undecided = self.thinking is not None and self.thinking.phase is Phase.UNDECIDED
        thinking = self._submission.thinking
        also = [thinking.start_id] if undecided and thinking is not None else []
        keep(row, self.guide.allowed(drafts), also)

    def _forbid_stops(self, row: Row) -> None:
        """A complete answer may end before the least number of tokens: then there is nothing else to say."""
        stops = set(self._submission.stop_ids if self.answering else self._ends)
        if self.guide is not None and self.answering:
            stops |= {token for token in self.guide.end_ids if token < len(row)}
        ids = np.array(sorted(stops), dtype=np.int64)
        before = row[ids]
        row[ids] = FORBIDDEN
        if self.guide is not None and self.answering and row.max() == FORBIDDEN:
            row[ids] = before
