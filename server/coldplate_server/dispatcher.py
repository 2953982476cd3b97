"""Admission: from arrival through the queue to a worker, and out again."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import structlog

from coldplate.clock import Clock
from coldplate_server.errors import DeadlineExceeded, Draining, NoWorker, QueueTimeout, RequestError, Shed
from coldplate_server.journal import Journal, StreamRecord
from coldplate_server.request import Priority
from coldplate_server.request_queue import RequestQueue
from coldplate_server.workers.fleet import Fleet, Worker

log = structlog.get_logger()

_DRAIN_RETRY_S = 5.0
_MIN_RETRY_S, _MAX_RETRY_S = 0.5, 30.0


class Dispatcher:
    """Owns the queue. ``fleet`` is set once, after the two were built."""

    fleet: Fleet

    def __init__(self, journal: Journal, queue: RequestQueue, clock: Clock) -> None:
        self.journal = journal
        self.queue = queue
        self.draining = False
        self._clock = clock
        self._leave_by: dict[int, float] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def check_open(self) -> None:
        """Raise Draining when no new requests are taken."""
        if self.draining:
            raise Draining("the service is draining and takes no new requests", retry_after_s=_DRAIN_RETRY_S)

    def enqueue(self, records: Sequence[StreamRecord], max_wait_s: float) -> None:
        """Take the streams of one request in and start those there is room for.

        Raises the refusal as a RequestError; then none of them is left.
        """
        self.check_open()
        first = records[0]
        refusal = self.fleet.refusal(first.model, first.priority)
        if refusal is not None:
            raise refusal
        self.fleet.check_features(first.model, first.needs)
        self.journal.open(records)
        self._idle.clear()
        try:
            for record in records:
                self._take_in(record, max_wait_s)
        except RequestError:
            for record in records:
                self.withdraw(record)
            raise

    def _take_in(self, record: StreamRecord, max_wait_s: float) -> None:
        if self._lane_is_empty(record) and self._start(record):
            return
        if max_wait_s <= 0:
            raise QueueTimeout("no engine is free and queue_timeout is 0; no token was made", waited_s="0.0")
        self.queue.push(record, self._retry_after_s())
        self._leave_by[record.number] = record.arrived + max_wait_s
        first = record.sibling_of
        if first is not None and first.submitted is not None:
            self._leave_by[record.number] = math.inf
        self.pump()

    def withdraw(self, record: StreamRecord) -> None:
        """End all work for a stream, wherever it is."""
        if self.queue.remove(record):
            self._leave_by.pop(record.number, None)
        elif (worker := self.fleet.by_name(record.worker)) is not None:
            worker.link.cancel(record)
        self._forget(record)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no stream is left; False when some are, after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def abort(self, record: StreamRecord, error: RequestError) -> None:
        """End a stream from this side; its reader gets ``error``."""
        record.fail(error)
        self.withdraw(record)
        record.notify()

    def pump(self) -> None:
        """Start every waiting stream there is room for."""
        for record in self.queue.heads(self.fleet.could_take):
            if self._start(record):
                self.queue.remove(record)
                self._leave_by.pop(record.number, None)

    def tick(self) -> None:
        """Let those go who waited too long, whose model lost its last worker or whose class is shed; start others."""
        now = self._clock.now()
        kept: set[tuple[str, Priority]] = set()  # lanes nobody is turned away from
        for record in self.queue:
            lane = (record.model, record.priority)
            if now >= self._leave_by[record.number]:
                waited = now - record.arrived
                self.abort(
                    record,
                    QueueTimeout(f"still queued after {waited:.1f} s; no token was made", waited_s=f"{waited:.1f}"),
                )
            elif lane not in kept:
                refusal = self.fleet.refusal(*lane)
                begun = self._leave_by[record.number] == math.inf  # the rest of a request that is under way
                if isinstance(refusal, NoWorker) or (isinstance(refusal, Shed) and not begun):
                    self.abort(record, refusal)
                elif not isinstance(refusal, Shed):
                    kept.add(lane)
        self.fleet.push_limits()
        self.pump()

    def _forget(self, record: StreamRecord) -> None:
        self.journal.close(record)
        if not len(self.journal):
            self._idle.set()

    def _lane_is_empty(self, record: StreamRecord) -> bool:
        return self.queue.position(record) == 0

    def _start(self, record: StreamRecord) -> bool:
        worker = self.fleet.choose(record)
        if worker is None:
            return False
        if not self._meets_deadline(record, worker):
            error = DeadlineExceeded("the deadline leaves no time for a first token; no token was made")
            if record.number in self._leave_by:
                self.abort(record, error)
                return True
            raise error
        self._apply_caps(record, worker)
        worker.link.submit(record)
        for sibling in self.journal.get(record.request_id):
            if sibling.number in self._leave_by:
                self._leave_by[sibling.number] = math.inf  # the request has begun: the rest of it only waits for room
        assert record.submitted is not None
        self.queue.last_wait_s = record.submitted - record.arrived
        record.notify()
        return True

    def _apply_caps(self, record: StreamRecord, worker: Worker) -> None:
        limits = self.fleet.limits_of(worker)
        cap = limits.max_new_tokens
        if cap is not None and cap + record.resumed < record.max_tokens:
            record.max_tokens, record.context_limited = cap + record.resumed, False
        budget, thinking = limits.max_reasoning_tokens, record.thinking
        if budget is not None and thinking is not None:
            own = thinking.budget_tokens
            record.thinking = replace(thinking, budget_tokens=budget if own is None else min(own, budget))

    def _meets_deadline(self, record: StreamRecord, worker: Worker) -> bool:
        if record.deadline is None:
            return True
        rate = worker.link.steps.prefill_tokens_per_s
        needed = len(record.prompt_ids) / rate if rate else 0.0
        return self._clock.now() + needed < record.deadline

    def _retry_after_s(self) -> float:
        """A guess at when the queue has room: the wait of whoever left it last."""
        return min(max(self.queue.last_wait_s, _MIN_RETRY_S), _MAX_RETRY_S)
