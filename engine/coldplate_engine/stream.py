"""One stream in the engine, and what makes a submission unusable."""

import math
from dataclasses import dataclass, field

from coldplate_engine.messages import Finished, StopCause, Submission


@dataclass(slots=True, eq=False)
class Stream:
    """``tokens`` are prompt, emitted and new ids in one list; the first ``computed`` of them are in the cache.

    ``drafts`` are guesses at what follows ``tokens``. The scheduler's: ``rank`` orders streams, the first in rank
    least; ``block_keys`` are the prefix keys of full blocks of ``tokens``, and the first ``blocks_kept`` blocks of the
    table can be found under theirs; ``admitted`` tells that it has been reported as running.
    """

    submission: Submission
    tokens: list[int]
    reserved_tokens: int
    deadline: float | None = None
    computed: int = 0
    block_table: list[int] = field(default_factory=list)
    decoding: bool = False
    drafts: list[int] = field(default_factory=list)
    rank: tuple[int, int] = (0, 0)
    block_keys: list[bytes] = field(default_factory=list)
    blocks_kept: int = 0
    preemptions: int = 0
    admitted: bool = False

    @classmethod
    def start(cls, submission: Submission, max_model_len: int, now: float) -> "Stream":
        """``now`` is the clock's time of arrival."""
        prompt_and_answer = len(submission.prompt_ids) + submission.max_tokens
        return cls(
            submission=submission,
            tokens=[*submission.prompt_ids, *submission.emitted_ids],
            reserved_tokens=min(prompt_and_answer, max_model_len),
            deadline=None if submission.deadline_s is None else now + submission.deadline_s,
        )

    @property
    def id(self) -> int:
        return self.submission.stream

    @property
    def generated(self) -> int:
        """Output tokens so far, the emitted ones included; also the position of the next one."""
        return len(self.tokens) - len(self.submission.prompt_ids)

    def logit_tokens(self, start: int, end: int) -> int:
        """Rows of logits wanted behind ``tokens[start:end]``, the last ones of them."""
        return int(end == len(self.tokens))

    def restart(self) -> None:
        """Nothing is in the cache any more: the next step begins from the first token."""
        self.computed = self.blocks_kept = 0
        self.block_table, self.drafts, self.decoding = [], [], False

    def accept(self, token: int, max_model_len: int) -> tuple[bool, Finished | None]:
        """Take the next token. Returns whether it is output (a stop token is not), and the end if this is it."""
        if token in self.submission.stop_ids:
            return False, Finished(self.id, StopCause.STOP_TOKEN, stop_token_id=token)
        self.tokens.append(token)
        self.decoding = True
        return True, self.end_by_length(max_model_len)

    def end_by_length(self, max_model_len: int) -> Finished | None:
        if self.generated >= self.submission.max_tokens:
            return Finished(self.id, StopCause.MAX_TOKENS)
        if len(self.tokens) >= max_model_len:
            return Finished(self.id, StopCause.CONTEXT_FULL)
        return None


def why_unusable(submission: Submission, vocabulary_size: int, max_model_len: int) -> str | None:
    """Why this submission can never run on this model, or None."""
    ids = (*submission.prompt_ids, *submission.emitted_ids)
    sampling = submission.sampling
    if not submission.prompt_ids:
        return "the prompt has no tokens"
    if min(ids) < 0 or max(ids) >= vocabulary_size:
        outside = next(i for i in ids if not 0 <= i < vocabulary_size)
        return f"token id {outside} is outside the vocabulary of {vocabulary_size}"
    if submission.max_tokens < 1:
        return f"max_tokens is {submission.max_tokens}: expected at least 1"
    if len(submission.prompt_ids) >= max_model_len:
        return f"the prompt's {len(submission.prompt_ids)} tokens leave no room in a context of {max_model_len}"
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return f"temperature is {sampling.temperature}: expected a number of at least 0"
    if not 0 < sampling.top_p <= 1:
        return f"top_p is {sampling.top_p}: expected above 0 and at most 1"
    if not 0 <= sampling.min_p <= 1:
        return f"min_p is {sampling.min_p}: expected 0 to 1"
    if sampling.top_k < 0:
        return f"top_k is {sampling.top_k}: expected at least 0"
    return None
