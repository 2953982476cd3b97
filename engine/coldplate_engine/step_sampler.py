"""From a step's logits to what each of its streams got: tokens, log-probabilities, or a failure of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog
import torch
from torch import Tensor

from coldplate_engine.batch import StreamSlice
from coldplate_engine.guided.guide import ConstraintError
from coldplate_engine.logprobs import token_logprobs
from coldplate_engine.messages import EngineError, PromptLogprobs, Sampling, TokenLogprob
from coldplate_engine.sampler import SampleRow, sample
from coldplate_engine.stream import Stream

log = structlog.get_logger()

Failure = tuple[EngineError, str]
NON_FINITE: Failure = (EngineError.NON_FINITE_LOGITS, "logits held NaN or infinity")
DEAD_END: Failure = (EngineError.BAD_CONSTRAINT, "the constraint and the bias leave no token to go on with")
_GREEDY = Sampling()


@dataclass(slots=True)
class Outcome:
    """What one slice brought its stream: new tokens in order, with ``logprobs`` for each if wanted; why it failed."""

    stream: Stream
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt: PromptLogprobs | None = None
    failure: Failure | None = None


@dataclass(slots=True)
class _Row:
    """The row ``index`` of the logits, from which the token behind the stream's and ``ahead`` drafts is chosen."""

    index: int
    outcome: Outcome
    ahead: int
    token: int = -1
    failure: Failure | None = None

    @property
    def stream(self) -> Stream:
        return self.outcome.stream

    @property
    def position(self) -> int:
        return self.stream.generated + self.ahead


class StepSampler:
    """Called after each part of a step. ``max_reasoning_tokens`` caps the thinking of every stream."""

    def __init__(self) -> None:
        self.max_reasoning_tokens: int | None = None

    def __call__(
        self,
        logits: Tensor,
        pieces: Sequence[StreamSlice],
        streams: Mapping[int, Stream],
        so_far: Mapping[int, list[int]],
    ) -> list[Outcome]:
        """``logits`` (float32, [rows, vocabulary]) belong to ``pieces``; they are left as they are.

        ``so_far`` are the tokens from earlier parts of this step. A row counts when the drafts before it came true:
        a stream gets the tokens it would have got one by one.
        """
        outcomes: list[Outcome] = []
        rows: list[_Row] = []
        index = 0
        for piece in pieces:
            if piece.logit_tokens:
                outcome = Outcome(streams[piece.stream])
                outcomes.append(outcome)
                at = piece.start + len(piece.token_ids) - piece.logit_tokens + 1  # position of the first row's token
                known = len(outcome.stream.tokens)
                aheads = range(max(0, at - known), at + piece.logit_tokens - known)
                rows += [_Row(index + known + ahead - at, outcome, ahead) for ahead in aheads]
                _score_prompt(logits, outcome, index, at, piece.logit_tokens)
                index += piece.logit_tokens
        self._choose(logits, rows)
        taken = _take(rows, so_far)
        _score(logits, [row for row in taken if row.stream.submission.logprobs is not None])
        return outcomes

    def _choose(self, logits: Tensor, rows: list[_Row]) -> None:
        plain: list[_Row] = []
        edited: list[_Row] = []
        forced: dict[int, int] = {}
        for row in rows:
            rules = row.stream.rules
            if rules is None:
                plain.append(row)
                continue
            rules.cap_thinking(self.max_reasoning_tokens)
            if (token := rules.forced(row.ahead)) is not None:
                forced[row.index] = token
                plain.append(row)
            else:
                (edited if rules.edits(row.position) else plain).append(row)
        if plain:
            everything = len(plain) == len(logits)
            _sample(logits if everything else logits[[row.index for row in plain]], plain, forced)
        if edited:
            _sample_edited(logits, edited)


def _sample(logits: Tensor, rows: list[_Row], forced: Mapping[int, int]) -> None:
    wanted = [
        SampleRow(_GREEDY if row.index in forced else row.stream.submission.sampling, row.position) for row in rows
    ]
    for row, token in zip(rows, sample(logits, wanted), strict=True):
        if token is None:
            row.failure = NON_FINITE
        else:
            row.token = forced.get(row.index, token)


def _sample_edited(logits: Tensor, rows: list[_Row]) -> None:
    """Rows that rules change are worked on as copies, in the host's memory."""
    work = logits[[row.index for row in rows]].cpu().numpy()
    good: list[int] = []
    for i, usable in enumerate(np.isfinite(work.max(axis=1)).tolist()):
        rows[i].failure = _edit(work[i], rows[i]) if usable else NON_FINITE
        if rows[i].failure is None:
            good.append(i)
    if good:
        left = work if len(good) == len(rows) else work[good]
        _sample(torch.from_numpy(left), [rows[i] for i in good], {})


def _edit(logits: np.ndarray[tuple[int], np.dtype[np.float32]], row: _Row) -> Failure | None:
    stream = row.stream
    assert stream.rules is not None
    try:
        stream.rules.edit(logits, stream.tokens, stream.drafts[: row.ahead], row.position)
    except ConstraintError as error:
        return EngineError.BAD_CONSTRAINT, str(error)
    except Exception as error:  # whatever it is, it is this stream's
        log.exception("sampling failed", request_id=stream.submission.request_id)
        return EngineError.DEVICE, f"sampling failed: {type(error).__name__}: {error}"
    return DEAD_END if logits.max() == -np.inf else None


def _take(rows: list[_Row], so_far: Mapping[int, list[int]]) -> list[_Row]:
    """Give the streams the tokens of the rows that count; returns those rows."""
    taken: list[_Row] = []
    for row in rows:
        stream, outcome = row.stream, row.outcome
        got = [*so_far.get(stream.id, ()), *outcome.tokens]
        if outcome.failure is not None or got != stream.drafts[: row.ahead]:
            continue
        outcome.failure = row.failure
        if row.failure is None:
            outcome.tokens.append(row.token)
            taken.append(row)
    return taken


def _score(logits: Tensor, rows: list[_Row]) -> None:
    if not rows:
        return
    counts = [row.stream.submission.logprobs or 0 for row in rows]
    found = token_logprobs(logits, [row.index for row in rows], [row.token for row in rows], counts)
    for row, logprob in zip(rows, found, strict=True):
        row.outcome.logprobs.append(logprob)


def _score_prompt(logits: Tensor, outcome: Outcome, index: int, at: int, rows: int) -> None:
    """Rows from ``index`` on tell of the tokens from position ``at`` on; those of the prompt are wanted."""
    stream = outcome.stream
    count, prompt = stream.submission.prompt_logprobs, stream.submission.prompt_ids
    begin, end = max(at, stream.prompt_scored), min(at + rows, len(prompt))
    if count is None or begin >= end:
        return
    of = list(range(index + begin - at, index + end - at))
    found = token_logprobs(logits, of, list(prompt[begin:end]), [count] * len(of))
    outcome.prompt = PromptLogprobs(stream.id, begin, found)
