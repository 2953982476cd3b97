"""The control stream to one worker: submits, cancels and limits out, steps in."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio
import structlog

from coldplate.clock import Clock
from coldplate.device_id import DeviceId
from coldplate.internal.v1 import engine_pb2, engine_pb2_grpc
from coldplate.limits import NO_LIMITS, Limits
from coldplate.limits_proto import limits_to_proto
from coldplate_server.journal import EngineEnd, StreamRecord
from coldplate_server.settings import WorkerSpec
from coldplate_server.workers import logprobs
from coldplate_server.workers.credit import Credit
from coldplate_server.workers.endings import error_of, lost_error
from coldplate_server.workers.step_log import StepLog
from coldplate_server.workers.submit import submit_message

log = structlog.get_logger()

_FIRST_RETRY_S, _LAST_RETRY_S = 0.05, 2.0
_SILENT_AFTER_S = 10.0
_LONGEST_DEADLINE_MS = 2**32 - 1
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A worker that nobody calls ends itself after ten seconds: it must be found sooner, however long it was away.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 5000),  # the time a connection attempt gets
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_POSITIVE = ("block_size", "kv_cache_tokens", "max_model_len", "max_num_seqs", "vocabulary_size")
_ENDS = {
    engine_pb2.STOP_CAUSE_STOP_TOKEN: "stop_token",
    engine_pb2.STOP_CAUSE_MAX_TOKENS: "max_tokens",
    engine_pb2.STOP_CAUSE_CONTEXT_FULL: "context_full",
}


class LinkEvents(Protocol):
    """Whom a link tells."""

    def worker_changed(self, link: "WorkerLink") -> None:
        """It came or went."""
        ...

    def step_taken(self, link: "WorkerLink", tokens: int) -> None:
        """It made ``tokens`` new tokens, and may have other credit than before."""
        ...


class ProtocolBroken(Exception):
    """A worker said what no worker of ours says."""


@dataclass(frozen=True, slots=True)
class LoadingState:
    phase: str
    progress: float


class WorkerLink:
    """One worker over the time of its connections.

    ``hello`` is None while it is not ready, and ``trouble`` tells why in words where that is known.
    """

    def __init__(self, spec: WorkerSpec, address: str, clock: Clock, events: LinkEvents) -> None:
        self.spec = spec
        self.address = address
        self.hello: engine_pb2.Hello | None = None
        self.loading: LoadingState | None = None
        self.trouble: str | None = None
        self.has_served = False
        self.credit = Credit(1, 0, 0)
        self.steps = StepLog(clock)
        self.devices: list[str] = []
        self.features: frozenset[str] = frozenset()
        self._clock = clock
        self._events = events
        self._live: dict[int, StreamRecord] = {}
        self._outbox: asyncio.Queue[engine_pb2.RunRequest] | None = None
        self._limits = NO_LIMITS
        self._limits_seq = 0

    @property
    def ready(self) -> bool:
        return self.hello is not None

    @property
    def running(self) -> int:
        """Streams handed to the worker and not ended."""
        return len(self._live)

    @property
    def max_streams(self) -> int:
        return self.hello.max_num_seqs if self.hello else 0

    def submit(self, record: StreamRecord) -> None:
        """Hand a stream over; the caller has checked the credit."""
        assert self.hello is not None
        self.credit.spend(record.admission_tokens)
        self._live[record.number] = record
        record.worker, record.device = self.spec.name, self.hello.devices[0]
        record.submitted = self._clock.now()
        record.attempts += 1
        record.paced_s = -self.steps.paced_total_s
        self._send(submit=submit_message(record, self.spec.name, self.features, self._deadline_ms(record)))

    def cancel(self, record: StreamRecord) -> None:
        """Stop work on a stream; what it still makes is dropped."""
        if self._live.pop(record.number, None) is not None:
            self._settle(record)
            self._send(cancel=engine_pb2.Cancel(stream=record.number))

    def set_limits(self, limits: Limits) -> None:
        """Send limits when they are other than the last."""
        if limits != self._limits:
            self._limits = limits
            self._send_limits()

    async def run(self) -> None:
        """Stay connected until cancelled, over as many connections as it takes."""
        retry_s = _FIRST_RETRY_S
        try:
            while True:
                async with grpc.aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS) as channel:
                    greeted = await self._one_connection(engine_pb2_grpc.EngineServiceStub(channel))
                retry_s = _FIRST_RETRY_S if greeted else min(2 * retry_s, _LAST_RETRY_S)
                await asyncio.sleep(retry_s)
        finally:
            self._lost()

    async def _one_connection(self, stub: engine_pb2_grpc.EngineServiceStub) -> bool:
        """Returns, when the connection has ended, whether it ever came to a hello."""
        outbox: asyncio.Queue[engine_pb2.RunRequest] = asyncio.Queue()
        call = stub.Run(wait_for_ready=True)
        writer = asyncio.create_task(_write_out(outbox, call))
        silence = asyncio.get_running_loop().call_later(_SILENT_AFTER_S, self._note_silence)
        try:
            async for response in call:
                silence.cancel()
                event = response.WhichOneof("event")
                if event == "step":
                    self._take_checked(response.step)
                elif event == "hello":
                    self._outbox = outbox
                    self._greet(response.hello)
                elif event == "loading":
                    self.loading = LoadingState(response.loading.phase, response.loading.progress)
            trouble = "the worker ended its control stream"
        except grpc.aio.AioRpcError as error:
            trouble = f"{error.code().name}: {error.details()}"
        except ProtocolBroken as error:
            trouble = f"the worker breaks the protocol: {error}"
        finally:
            silence.cancel()
            writer.cancel()
            call.cancel()
            greeted = self.ready
            self._lost()
        if greeted or trouble != self.trouble:
            log.warning("worker connection lost", worker=self.spec.name, reason=trouble)
        self.trouble = trouble
        return greeted

    def _note_silence(self) -> None:
        if self.trouble is None:
            self.trouble = "nothing has been heard from the worker yet"
            log.warning("worker is silent", worker=self.spec.name, address=self.address, waited_s=_SILENT_AFTER_S)

    def _greet(self, hello: engine_pb2.Hello) -> None:
        if (reason := _why_unusable(hello)) is not None:
            raise ProtocolBroken(reason)
        self.hello, self.loading, self.trouble, self.has_served = hello, None, None, True
        self.devices, self.features = list(hello.devices), frozenset(hello.features)
        self.credit = Credit(hello.block_size, hello.credit.free_slots, hello.credit.free_kv_tokens)
        self.steps.reset()
        log.info(
            "worker ready",
            worker=self.spec.name,
            model=hello.model,
            devices=list(hello.devices),
            dtype=hello.dtype,
            kv_cache_tokens=hello.kv_cache_tokens,
        )
        if self._limits:
            self._send_limits()
        self._events.worker_changed(self)

    def _take_checked(self, step: engine_pb2.Step) -> None:
        try:
            self._take_step(step)
        except ValueError as error:
            raise ProtocolBroken(str(error)) from None

    def _take_step(self, step: engine_pb2.Step) -> None:
        if self.hello is None or len(step.streams) != len(step.token_ids):
            raise ProtocolBroken("a step before hello, or not one stream for each of its tokens")
        if step.token_ids and not 0 <= min(step.token_ids) <= max(step.token_ids) < self.hello.vocabulary_size:
            raise ProtocolBroken(f"a token outside its vocabulary of {self.hello.vocabulary_size}")
        now = self._clock.now()
        live = self._live
        touched: dict[int, StreamRecord] = {}
        for admitted in step.admitted:
            if (record := live.get(admitted.stream)) is not None and not record.admitted:
                record.admitted = True
                record.cached_tokens = admitted.cached_tokens
                touched[record.number] = record
        token_logprobs = logprobs.by_index(step)
        for index, (number, token_id) in enumerate(zip(step.streams, step.token_ids, strict=True)):
            if (record := live.get(number)) is not None:
                record.append(token_id, now)
                if record.logprobs_wanted is not None:
                    record.logprobs.append(logprobs.of_token(token_id, token_logprobs.get(index)))
                touched[number] = record
        for prompt in step.prompt_logprobs:
            if (record := live.get(prompt.stream)) is not None:
                record.add_prompt_logprobs(prompt.first, logprobs.of_prompt(prompt.logprobs))
                touched[record.number] = record
        self.steps.add(step.stats, len(step.streams))
        for finished in step.finished:
            if (record := live.pop(finished.stream, None)) is not None:
                self._end(record, finished, now)
                touched[record.number] = record
        self.credit.update(step.credit.submits_seen, step.credit.free_slots, step.credit.free_kv_tokens)
        for record in touched.values():
            record.notify()
        self._events.step_taken(self, len(step.streams))

    def _end(self, record: StreamRecord, finished: engine_pb2.Finished, now: float) -> None:
        self._settle(record)
        cause = _ENDS.get(finished.cause)
        if cause is not None:
            token = finished.stop_token_id if cause == "stop_token" else None
            record.finish(EngineEnd(cause, token))
            return
        error = error_of(record, finished, now)
        log.warning(
            "engine ended a stream with an error",
            request_id=record.request_id,
            worker=self.spec.name,
            reason=error.reason,
            detail=finished.error_text,
        )
        record.fail(error)

    def _deadline_ms(self, record: StreamRecord) -> int:
        if record.deadline is None:
            return 0
        left_ms = (record.deadline - self._clock.now()) * 1000
        return min(max(1, round(left_ms)), _LONGEST_DEADLINE_MS)

    def _settle(self, record: StreamRecord) -> None:
        record.paced_s += self.steps.paced_total_s

    def _lost(self) -> None:
        self._outbox = None
        self.hello = self.loading = None
        live, self._live = self._live, {}
        for record in live.values():
            self._settle(record)
            record.fail(lost_error(record))
            record.notify()
        self._events.worker_changed(self)

    def _send_limits(self) -> None:
        self._limits_seq += 1
        self._send(set_limits=engine_pb2.SetLimits(seq=self._limits_seq, limits=limits_to_proto(self._limits)))

    def _send(self, **command: object) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(engine_pb2.RunRequest(**command))  # type: ignore[arg-type]


def _why_unusable(hello: engine_pb2.Hello) -> str | None:
    if not hello.devices:
        return "its hello names no device"
    try:
        for device in hello.devices:
            DeviceId.parse(device)
    except ValueError as error:
        return f"its hello: {error}"
    bad = next((name for name in _POSITIVE if getattr(hello, name) < 1), None)
    return f"its hello: {bad} is {getattr(hello, bad)}" if bad else None


async def _write_out(outbox: asyncio.Queue[engine_pb2.RunRequest], call: Any) -> None:
    """Send commands until the call ends; who reads from it learns why."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await call.write(await outbox.get())
