"""Running one step on a device that may fail: what must shrink shrinks, what fails alone fails alone."""

import gc
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.memory_cap import MemoryCap
from coldplate_engine.messages import EngineError, PromptLogprobs, TokenLogprob
from coldplate_engine.offload import HostBlocks, KvCopies
from coldplate_engine.runner import Device, Fault, ModelRunner
from coldplate_engine.scheduler import StepPlan
from coldplate_engine.step_timer import StepTimer
from coldplate_engine.stream import Stream

if TYPE_CHECKING:
    from torch import Tensor

    from coldplate_engine.step_sampler import Outcome

log = structlog.get_logger()

SampleStreams = Callable[
    ["Tensor", Sequence[StreamSlice], Mapping[int, Stream], Mapping[int, list[int]]], "list[Outcome]"
]

_OOM_ATTEMPTS = 3


@dataclass(slots=True)
class StepResult:
    """New tokens in order, streams that failed and why, and the fault that ends the process, if one does.

    ``logprobs[i]`` belongs to ``tokens[i]``. ``failed_kind`` is the kind of the fault behind a step that brought
    nothing at all. ``copies_failed``: the copies to or from host memory did, and nothing ran.
    """

    tokens: list[tuple[Stream, int]] = field(default_factory=list)
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    failed: dict[int, tuple[EngineError, str]] = field(default_factory=dict)
    restart: Fault | None = None
    failed_kind: str | None = None
    copies_failed: Fault | None = None

    def add(self, outcome: "Outcome") -> None:
        stream = outcome.stream
        for i, token in enumerate(outcome.tokens):
            if outcome.logprobs:
                self.logprobs[len(self.tokens)] = outcome.logprobs[i]
            self.tokens.append((stream, token))
        if outcome.prompt is not None:
            stream.prompt_scored = outcome.prompt.first + len(outcome.prompt.logprobs)
            self.prompt_logprobs.append(outcome.prompt)
        if outcome.failure is not None:
            self.failed[stream.id] = outcome.failure

    def by_stream(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for stream, token in self.tokens:
            found.setdefault(stream.id, []).append(token)
        return found


class StepExecutor:
    """``execute`` then sample, with the device's errors handled.

    One call asks for at most ``max_tokens`` tokens and ``max_rows`` rows of logits.

    Out of memory: the part that failed is cut in half and run again under a cap on tokens per call that grows back; a
    single token that fails three times ends its stream, and the next ones get one try each until one succeeds. Any
    other error that leaves the device usable: the part is halved until what fails alone is found, and that stream
    ends. Running a slice again writes the same cache entries.
    """

    def __init__(
        self,
        device: Device,
        runner: ModelRunner,
        sample: SampleStreams,
        max_tokens: int,
        host_blocks: HostBlocks | None = None,
        max_rows: int | None = None,
    ) -> None:
        self._device = device
        self._host_blocks = host_blocks
        self._runner = runner
        self._sample = sample
        self._max_rows = max_tokens if max_rows is None else max_rows
        self.cap = MemoryCap(max_tokens)
        self._collected = False

    def run(self, plan: StepPlan, timer: StepTimer) -> StepResult:
        result = StepResult()
        self._collected = False
        if plan.copies and (fault := self._copy(plan.copies, timer)) is not None:
            result.restart, result.copies_failed = (fault, None) if fault.kind == "restart" else (None, fault)
            return result
        streams = {stream.id: stream for stream in plan.streams}
        pending = deque(split(plan.batch.slices, self.cap.tokens, self._max_rows))
        attempts_left = _OOM_ATTEMPTS
        any_good = False
        while pending:
            part = [piece for piece in pending.popleft() if piece.stream not in result.failed]
            if not part:
                continue
            fault = self._attempt(part, streams, result, timer)
            tokens = sum(len(piece.token_ids) for piece in part)
            if fault is None:
                self.cap.succeeded()
                any_good, attempts_left = True, _OOM_ATTEMPTS
            elif fault.kind == "restart":
                result.restart = fault
                return result
            elif fault.kind == "oom" and tokens > 1:
                self.cap.ran_out(tokens)
                log.warning("device out of memory: step cut", tokens=tokens, cap=self.cap.tokens, error=fault.text)
                left = [*part, *(piece for rest in pending for piece in rest)]
                pending = deque(split(left, self.cap.tokens, self._max_rows))
            elif fault.kind == "oom" and attempts_left > 1:
                attempts_left -= 1
                pending.appendleft(part)
            elif len(part) > 1:
                middle = len(part) // 2
                pending.extendleft((part[middle:], part[:middle]))
            else:
                error = EngineError.OUT_OF_MEMORY if fault.kind == "oom" else EngineError.DEVICE
                result.failed[part[0].stream] = (error, fault.text)
                result.failed_kind = fault.kind
        if any_good:
            result.failed_kind = None
        return result

    def _copy(self, copies: KvCopies, timer: StepTimer) -> Fault | None:
        assert self._host_blocks is not None
        try:
            with timer.part("copy"):
                self._host_blocks.run(copies)
        except BaseException as error:  # as in a step
            fault = self._device.classify(error)
            _let_go(error)
            return fault
        return None

    def _attempt(
        self, part: list[StreamSlice], streams: dict[int, Stream], result: StepResult, timer: StepTimer
    ) -> Fault | None:
        outcomes: list[Outcome] = []
        try:
            logits = self._runner.execute(StepBatch(part), timer)
            if len(logits):
                with timer.part("sample"):
                    outcomes = self._sample(logits, part, streams, result.by_stream())
        except BaseException as error:  # a device may raise anything, even asyncio's CancelledError
            fault = self._device.classify(error)
            if fault.kind != "oom":
                log.error("step failed", kind=fault.kind, error=fault.text, trace=traceback.format_exc())
            _let_go(error)
        else:
            for outcome in outcomes:
                result.add(outcome)
            return None
        if fault.kind == "oom" and not self._collected:
            gc.collect()  # slow, so once a step
            self._collected = True
        return fault


def split(slices: list[StreamSlice], most: int, most_rows: int) -> list[list[StreamSlice]]:
    """Cut a step into parts of at most ``most`` tokens and ``most_rows`` rows of logits, in order.

    A stream appears once in a part.
    """
    parts: list[list[StreamSlice]] = []
    part: list[StreamSlice] = []
    room, row_room = most, most_rows
    for piece in slices:
        rest: StreamSlice | None = piece
        again = any(other.stream == piece.stream for other in part)
        while rest is not None:
            without_rows = len(rest.token_ids) - rest.logit_tokens
            take = 0 if again else min(len(rest.token_ids), room, without_rows + row_room)
            if take:
                head, rest = _cut(rest, take)
                part.append(head)
                room -= take
                row_room -= head.logit_tokens
            if rest is not None:
                parts.append(part)
                part, room, row_room, again = [], most, most_rows, False
    if part:
        parts.append(part)
    return parts


def _cut(piece: StreamSlice, take: int) -> tuple[StreamSlice, StreamSlice | None]:
    """The first ``take`` tokens, and the rest if there is one; each with its rows of logits."""
    left = len(piece.token_ids) - take
    if not left:
        return piece, None
    tail_rows = min(piece.logit_tokens, left)
    head = replace(piece, token_ids=piece.token_ids[:take], logit_tokens=piece.logit_tokens - tail_rows)
    tail = replace(piece, token_ids=piece.token_ids[take:], start=piece.start + take, logit_tokens=tail_rows)
    return head, tail


def _let_go(error: BaseException) -> None:
    """Drop the frames an error holds: their tensors are what the device has no room for."""
    chain: BaseException | None = error
    while chain is not None:
        traceback.clear_frames(chain.__traceback__)
        behind = chain.__cause__ or chain.__context__
        chain.__traceback__ = chain.__context__ = chain.__cause__ = None
        chain = behind
