"""Commands to vLLM, and what it answers gathered into one message a step. All on one event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from coldplate.limits import NO_LIMITS, Limits
from coldplate_engine.inbox import EXIT_OK, EXIT_REPLACE_DEVICE
from coldplate_engine.messages import (
    Cancel,
    Command,
    Connect,
    Credit,
    Disconnect,
    Drain,
    Emit,
    EngineError,
    Finished,
    SetLimits,
    Shutdown,
    StepOutput,
    StopCause,
    Submission,
)
from coldplate_engine.submission_check import why_unusable
from coldplate_engine.vllm_worker.board import Board, CoreLimits, CoreState
from coldplate_engine.vllm_worker.report import LiveStream, News, stats_between, sum_states
from coldplate_engine.vllm_worker.sampling import Unmappable, sampling_arguments, vllm_params

log = structlog.get_logger()

_SETTLE_S = 0.005
_WATCH_S = 0.25


@dataclass(frozen=True, slots=True)
class Counter:
    """What the desk must know of the engine behind it. ``ids`` is the size of the vocabulary."""

    max_num_seqs: int
    max_model_len: int
    block_size: int
    ids: int
    cores: int
    features: frozenset[str]
    by_priority: bool


class Desk:
    """One server's streams on one ``AsyncLLM``; ``ended`` gives the exit code.

    ``cause`` tells what killed an engine core: the kind of error and a line.
    """

    def __init__(self, llm: Any, board: Board, counter: Counter, cause: Callable[[], tuple[EngineError, str]]) -> None:
        self._llm = llm
        self._board = board
        self._counter = counter
        self._cause = cause
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._emit: Emit | None = None
        self._streams: dict[int, LiveStream] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._submits_seen = self._sent = 0
        self._unseen: deque[tuple[int, int]] = deque()  # how many were sent with it, stream
        self._news = News()
        self._flushing = self._draining = self._stopping = False
        self._limits_seq = self._board_seq = self._limits_told = 0
        self._states = [CoreState()] * counter.cores
        self._told = self._state()
        self._unsettled = asyncio.Event()

    def apply(self, commands: list[Command]) -> None:
        for command in commands:
            self._apply(command)

    async def watch(self) -> None:
        """See what comes without an output of vLLM's: freed blocks, limits in force, the death of an engine core."""
        while not self.ended.done():
            try:
                await asyncio.wait_for(self._unsettled.wait(), _WATCH_S)
                await asyncio.sleep(_SETTLE_S)
            except TimeoutError:
                pass
            if self._llm.errored:
                await self._core_died()
            elif self._unsettled.is_set() and self._is_settled(self._state()):
                self._unsettled.clear()
                self._flush_soon()

    def _apply(self, command: Command) -> None:
        match command:
            case Submission():
                self._submit(command)
            case Cancel(stream):
                self._cancel(stream)
            case SetLimits(seq, limits):
                self._set_limits(seq, limits)
            case Connect(emit):
                self._forget_server()
                self._emit = emit
            case Disconnect():
                self._forget_server()
            case Drain():
                self._draining = True
                self._flush_soon()
            case Shutdown(now):
                self._draining = self._stopping = True
                if now:
                    self._end_all(StopCause.CANCELLED)
                self._flush_soon()

    def _submit(self, submission: Submission) -> None:
        self._submits_seen += 1
        self._flush_soon()
        if submission.stream in self._streams:
            log.error("stream number used twice: ignored", stream=submission.stream, request_id=submission.request_id)
            return
        if self._draining or len(self._streams) >= self._counter.max_num_seqs:
            text = "the worker is draining" if self._draining else "submitted without credit"
            self._fail(submission, EngineError.REFUSED, text)
            return
        if (reason := why_unusable(submission, self._counter.ids, self._counter.max_model_len)) is not None:
            self._fail(submission, EngineError.UNSATISFIABLE, reason)
            return
        stream = LiveStream.start(submission, self._counter.block_size)
        if (cause := self._whole_already(submission)) is not None:
            self._news.finished.append(Finished(submission.stream, cause))
            return
        try:
            arguments = sampling_arguments(submission, self._counter.features)
        except Unmappable as error:
            self._fail(submission, error.error, str(error))
            return
        self._sent += 1
        self._unseen.append((self._sent, submission.stream))
        self._streams[submission.stream] = stream
        self._tasks[submission.stream] = self._loop.create_task(self._generate(stream, arguments))
        if submission.deadline_s is not None:
            self._loop.call_later(submission.deadline_s, partial(self._cancel_stream, stream))

    def _whole_already(self, submission: Submission) -> StopCause | None:
        if len(submission.emitted_ids) >= submission.max_tokens:
            return StopCause.MAX_TOKENS
        if len(submission.prompt_ids) + len(submission.emitted_ids) >= self._counter.max_model_len:
            return StopCause.CONTEXT_FULL
        return None

    async def _generate(self, stream: LiveStream, arguments: dict[str, Any]) -> None:
        """One stream to its end. Cancelling this aborts it in vLLM."""
        from vllm.v1.engine.exceptions import EngineDeadError

        submission = stream.submission
        prompt: dict[str, Any] = {"prompt_token_ids": [*submission.prompt_ids, *submission.emitted_ids]}
        if submission.cache_salt:
            prompt["cache_salt"] = submission.cache_salt
        priority = -submission.priority if self._counter.by_priority else 0
        name = f"{submission.request_id or 'stream'}-{submission.stream}"
        try:
            params = vllm_params(arguments)
            async for output in self._llm.generate(prompt, params, name, priority=priority):
                if self._streams.get(submission.stream) is not stream:
                    return
                self._flush_soon()
                if self._news.take(stream, output) is not None:
                    self._forget(submission.stream)
        except EngineDeadError:
            await self._core_died()
        except Exception as error:
            if self._streams.get(submission.stream) is stream:
                self._forget(submission.stream)
                bad = EngineError.BAD_CONSTRAINT if submission.constraint else EngineError.UNSATISFIABLE
                self._fail(submission, bad, f"vLLM refuses it: {error.__cause__ or error}")

    def _cancel(self, number: int) -> None:
        if (stream := self._streams.get(number)) is not None:
            self._cancel_stream(stream)

    def _cancel_stream(self, stream: LiveStream) -> None:
        number = stream.submission.stream
        if self._streams.get(number) is not stream:
            return
        self._tasks[number].cancel()
        self._forget(number)
        self._news.finished.append(Finished(number, StopCause.CANCELLED))
        self._unsettled.set()
        self._flush_soon()

    def _forget(self, number: int) -> None:
        del self._streams[number], self._tasks[number]
        if not self._streams:
            self._unseen.clear()
            self._sent = self._state().added  # what vLLM refused was never added

    def _set_limits(self, seq: int, limits: Limits) -> None:
        self._limits_seq = seq
        self._board_seq += 1
        duty = 1.0 if limits.duty is None else limits.duty
        self._board.set_limits(CoreLimits(self._board_seq, duty, limits.max_batch, limits.max_prefill_tokens))
        self._unsettled.set()

    def _forget_server(self) -> None:
        """A connection's streams, counts and limits end with it."""
        for task in self._tasks.values():
            task.cancel()
        self._streams.clear()
        self._tasks.clear()
        self._set_limits(0, NO_LIMITS)
        self._emit = None
        self._news = News()
        self._submits_seen = 0
        self._draining = self._stopping

    async def _core_died(self) -> None:
        if self.ended.done():
            return
        await asyncio.sleep(_WATCH_S)  # its last words are on their way
        if not self.ended.done():
            kind, text = self._cause()
            log.error("engine core died: worker ends", reason=text, streams=len(self._streams))
            self._end_all(StopCause.ERROR, kind, text)
            self._flush()
            self.ended.set_result(EXIT_REPLACE_DEVICE)

    def _end_all(self, cause: StopCause, error: EngineError | None = None, text: str = "") -> None:
        for number in list(self._streams):
            self._tasks[number].cancel()
            self._news.finished.append(Finished(number, cause, error=error, error_text=text))
        self._streams.clear()
        self._tasks.clear()

    def _fail(self, submission: Submission, error: EngineError, text: str) -> None:
        log.warning("stream failed", request_id=submission.request_id, error=error.value, reason=text)
        self._news.finished.append(Finished(submission.stream, StopCause.ERROR, error=error, error_text=text))
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Once all outputs of this step have been taken: their tasks are in the event loop's queue already."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        news, self._news = self._news, News()
        state = self._state()
        if self._is_in_force(state):
            self._limits_told = self._limits_seq
        if self._emit is not None:
            self._emit(
                StepOutput(
                    number=state.steps,
                    streams=news.streams,
                    token_ids=news.token_ids,
                    finished=news.finished,
                    admitted=news.admitted,
                    credit=self._credit(state),
                    limits_seq=self._limits_told,
                    stats=stats_between(self._told, state, news.cached_tokens),
                    logprobs=news.logprobs,
                    prompt_logprobs=news.prompt_logprobs,
                )
            )
        self._told = state
        if self._stopping and not self._streams and not self.ended.done():
            self.ended.set_result(EXIT_OK)

    def _state(self) -> CoreState:
        self._states = [self._board.state(core) or last for core, last in enumerate(self._states)]
        return sum_states(self._states)

    def _is_in_force(self, state: CoreState) -> bool:
        """An idle scheduler takes limits before its next step."""
        return state.limits_seq >= self._board_seq or state.live == 0

    def _is_settled(self, state: CoreState) -> bool:
        return self._is_in_force(state) and state.live <= len(self._streams)

    def _credit(self, state: CoreState) -> Credit:
        """From the schedulers' own account, less what they had not heard of when they wrote it."""
        while self._unseen and (self._unseen[0][0] <= state.added or self._unseen[0][1] not in self._streams):
            self._unseen.popleft()
        charged = sum(
            stream.charge
            for _, number in self._unseen
            if (stream := self._streams.get(number)) is not None and not stream.admitted
        )
        blocks = state.blocks_total - state.blocks_used - state.running - state.waiting_blocks - charged
        slots = 0 if self._draining else max(0, self._counter.max_num_seqs - len(self._streams))
        return Credit(self._submits_seen, slots, max(0, blocks * self._counter.block_size))
