"""One stream in the engine."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coldplate_engine.messages import Finished, StopCause, Submission
from coldplate_engine.token_rules import TokenRules, needs_rules

if TYPE_CHECKING:
    from coldplate_engine.speculation import Drafting


@dataclass(slots=True, eq=False)
class Stream:
    """``tokens`` are prompt, emitted and new ids in one list; the first ``computed`` of them are in the cache.

    ``ready`` is False while the constraint is compiled. ``drafts`` are guesses at what follows ``tokens``.
    ``prompt_scored`` is the first prompt position whose log-probability is still wanted. The scheduler's: ``rank``
    orders streams, the first in rank least; ``block_keys`` are the prefix keys of full blocks of ``tokens``, and the
    first ``blocks_kept`` blocks of the table can be found under theirs; ``admitted`` tells that it has been reported
    as running.
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
    rules: TokenRules | None = None
    ready: bool = True
    prompt_scored: int = 1
    drafting: "Drafting | None" = None

    @classmethod
    def start(
        cls, submission: Submission, max_model_len: int, now: float, end_of_text: frozenset[int] = frozenset()
    ) -> "Stream":
        """``now`` is the clock's time of arrival; ``end_of_text`` are the model's own end tokens."""
        prompt_and_answer = len(submission.prompt_ids) + submission.max_tokens
        return cls(
            submission=submission,
            tokens=[*submission.prompt_ids, *submission.emitted_ids],
            reserved_tokens=min(prompt_and_answer, max_model_len),
            deadline=None if submission.deadline_s is None else now + submission.deadline_s,
            rules=TokenRules(submission, end_of_text) if needs_rules(submission) else None,
            ready=submission.constraint is None,
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
        last = int(end == len(self.tokens))
        if self.submission.prompt_logprobs is None or self.prompt_scored >= len(self.submission.prompt_ids):
            return last
        return max(last, end - max(start, self.prompt_scored - 1))

    def restart(self) -> None:
        """Nothing is in the cache any more: the next step begins from the first token."""
        self.computed = self.blocks_kept = 0
        self.block_table, self.drafts, self.decoding = [], [], False

    def is_stop(self, token: int) -> bool:
        return token in self.submission.stop_ids if self.rules is None else self.rules.is_stop(token)

    def accept(self, token: int, max_model_len: int) -> tuple[bool, Finished | None]:
        """Take the next token. Returns whether it is output (a stop token is not), and the end if this is it."""
        if self.is_stop(token):
            return False, Finished(self.id, StopCause.STOP_TOKEN, stop_token_id=token)
        self.tokens.append(token)
        self.decoding = True
        ended = None if self.rules is None else self.rules.accept(token)
        return True, ended or self.end_by_length(max_model_len)

    def end_by_length(self, max_model_len: int) -> Finished | None:
        if self.generated >= self.submission.max_tokens:
            return Finished(self.id, StopCause.MAX_TOKENS)
        if len(self.tokens) >= max_model_len:
            return Finished(self.id, StopCause.CONTEXT_FULL)
        return None
