"""Running one step on a device that may fail: what must shrink shrinks, what fails alone fails alone."""

import gc
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.memory_cap import MemoryCap
from coldplate_engine.messages import EngineError
from coldplate_engine.offload import HostBlocks, KvCopies
from coldplate_engine.runner import Device, Fault, ModelRunner
from coldplate_engine.scheduler import StepPlan
from coldplate_engine.step_timer import StepTimer
from coldplate_engine.stream import Stream

if TYPE_CHECKING:
    from torch import Tensor

log = structlog.get_logger()

SampleStreams = Callable[["Tensor", list[Stream]], list[int | None]]

_OOM_ATTEMPTS = 3


@dataclass(slots=True)
class StepResult:
    """New tokens in order, streams that failed and why, and the fault that ends the process, if one does.

    ``failed_kind`` is the kind of the fault behind a step that brought nothing at all. ``copies_failed``: the copies
    to or from host memory did, and nothing ran.
    """

    tokens: list[tuple[Stream, int]] = field(default_factory=list)
    failed: dict[int, tuple[EngineError, str]] = field(default_factory=dict)
    restart: Fault | None = None
    failed_kind: str | None = None
    copies_failed: Fault | None = None


class StepExecutor:
    """``execute`` then sample, with the device's errors handled.

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
    ) -> None:
        self._device = device
        self._host_blocks = host_blocks
        self._runner = runner
        self._sample = sample
        self.cap = MemoryCap(max_tokens)
        self._collected = False

    def run(self, plan: StepPlan, timer: StepTimer) -> StepResult:
        result = StepResult()
        self._collected = False
        if plan.copies and (fault := self._copy(plan.copies, timer)) is not None:
            result.restart, result.copies_failed = (fault, None) if fault.kind == "restart" else (None, fault)
            return result
        streams = {stream.id: stream for stream in plan.streams}
        pending = deque(split(plan.batch.slices, self.cap.tokens))
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
                pending = deque(split([*part, *(piece for rest in pending for piece in rest)], self.cap.tokens))
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
        rows = [streams[piece.stream] for piece in part if piece.logit_tokens]
        try:
            logits = self._runner.execute(StepBatch(part), timer)
            if rows:
                with timer.part("sample"):
                    chosen = self._sample(logits, rows)
        except BaseException as error:  # a device may raise anything, even asyncio's CancelledError
            fault = self._device.classify(error)
            if fault.kind != "oom":
                log.error("step failed", kind=fault.kind, error=fault.text, trace=traceback.format_exc())
            _let_go(error)
        else:
            for stream, token in zip(rows, chosen if rows else (), strict=True):
                if token is None:
                    result.failed[stream.id] = (EngineError.NON_FINITE_LOGITS, "logits held NaN or infinity")
                else:
                    result.tokens.append((stream, token))
            return None
        if fault.kind == "oom" and not self._collected:
            gc.collect()  # slow, so once a step
            self._collected = True
        return fault


def split(slices: list[StreamSlice], most: int) -> list[list[StreamSlice]]:
    """Cut a step into parts of at most ``most`` tokens, in order; a stream appears once in a part."""
    parts: list[list[StreamSlice]] = []
    part: list[StreamSlice] = []
    room = most
    for piece in slices:
        rest = piece
        if any(other.stream == piece.stream for other in part):
            parts.append(part)
            part, room = [], most
        while len(rest.token_ids) > room:
            if room:
                part.append(replace(rest, token_ids=rest.token_ids[:room], logit_tokens=0))
                rest = replace(rest, token_ids=rest.token_ids[room:], start=rest.start + room)
            parts.append(part)
            part, room = [], most
        part.append(rest)
        room -= len(rest.token_ids)
    if part:
        parts.append(part)
    return parts


def _let_go(error: BaseException) -> None:
    """Drop the frames an error holds: their tensors are what the device has no room for."""
    chain: BaseException | None = error
    while chain is not None:
        traceback.clear_frames(chain.__traceback__)
        behind = chain.__cause__ or chain.__context__
        chain.__traceback__ = chain.__context__ = chain.__cause__ = None
        chain = behind
