"""Admission: from arrival through the queue to a worker, and out again."""

import asyncio
import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import structlog

from coldplate.clock import Clock
from coldplate_server.admission.door import Door
from coldplate_server.errors import DeadlineExceeded, Draining, NoWorker, QueueTimeout, RequestError, Shed
from coldplate_server.journal import Journal, StreamRecord
from coldplate_server.request import Priority
from coldplate_server.request_queue import RequestQueue
from coldplate_server.workers.fleet import Fleet, Worker

log = structlog.get_logger()

_DRAIN_RETRY_S = 5.0


class Dispatcher:
    """Owns the queue. ``fleet`` is set once, after the two were built."""

    fleet: Fleet

    def __init__(self, journal: Journal, queue: RequestQueue, clock: Clock) -> None:
        self.journal = journal
        self.queue = queue
        self.draining = False
        self._clock = clock
        self._door = Door(queue, clock, lambda model: self.fleet.cooling_s(model))
        self._leave_by: dict[int, float] = {}
        self._pumping = False
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
        self.queue.push(record, self._clock.now())
        self._leave_by[record.number] = record.arrived + max_wait_s
        first = record.sibling_of
        if first is not None and first.submitted is not None:
            self._leave_by[record.number] = math.inf
        self.pump()
        if record.submitted is None and record.error is None:
            if max_wait_s <= 0:
                raise QueueTimeout("no engine is free and queue_timeout is 0; no token was made", waited_s="0.0")
            self._let_wait(record)
        if record.error is not None:
            raise record.error

    def _let_wait(self, record: StreamRecord) -> None:
        """Keep a stream that found no room, at the cost of whoever goes for it. Raises the refusal if it is the one."""
        left_s = self._leave_by[record.number] - self._clock.now()
        if self._door.hopeless(record, left_s):
            expected = self._door.expected_wait_s(record) or 0.0
            after = self._door.retry_after_s(record)
            text = f"it would be queued for about {expected:.0f} s, longer than it is willing to wait"
            raise QueueTimeout(f"{text}; no token was made; try again in {after:.1f} s", retry_after_s=after)
        if record.deadline is not None and self._door.hopeless(record, record.deadline - self._clock.now()):
            raise DeadlineExceeded("the deadline passes long before its turn; no token was made")
        while record.submitted is None and (refusal := self._door.turn_away(record, self._has_begun)) is not None:
            other, error = refusal
            if other is record:
                raise error
            self.abort(other, error)

    def _has_begun(self, record: StreamRecord) -> bool:
        """Whether another stream of the request runs: the rest of it only waits for room."""
        return self._leave_by.get(record.number) == math.inf

    def withdraw(self, record: StreamRecord) -> None:
        """End all work for a stream, wherever it is."""
        if self._door.leave(record):
            self._leave_by.pop(record.number, None)
            self.pump()  # it may have been the one that all others waited behind
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
        """Start every waiting stream there is room for.

        What a head waits for is not given to a lower class: were it a little cache at a time, a large request of a high
        class would wait for as long as small ones of a low class come.
        """
        if self._pumping:
            return
        self._pumping = True
        try:
            self._door.advance()
            kept: set[str] = set()
            for record in self.queue.heads(self.fleet.could_take):
                if not self._start(record, kept):
                    kept |= self.fleet.takers(record)
        finally:
            self._pumping = False

    def tick(self) -> None:
        """Let those go who waited too long, whose model lost its last worker or whose class is shed; start others."""
        now = self._clock.now()
        kept: set[tuple[str, Priority]] = set()  # lanes nobody is turned away from
        for record in self.queue:
            lane = (record.model, record.priority)
            if (leave_by := self._leave_by.get(record.number)) is None:
                continue  # it started when another one went
            if now >= leave_by:
                waited = now - record.arrived
                after = self._door.retry_after_s(record)
                text = f"still queued after {waited:.1f} s; no token was made; try again in {after:.1f} s"
                self.abort(record, QueueTimeout(text, retry_after_s=after, waited_s=f"{waited:.1f}"))
            elif lane not in kept:
                refusal = self.fleet.refusal(*lane)
                if isinstance(refusal, NoWorker) or (isinstance(refusal, Shed) and not self._has_begun(record)):
                    self.abort(record, refusal)
                elif not isinstance(refusal, Shed):
                    kept.add(lane)
        self.fleet.push_limits()
        self.pump()
        for record, error in self._door.tick(self._has_begun):
            if record.number in self._leave_by:
                self.abort(record, error)

    def _forget(self, record: StreamRecord) -> None:
        self.journal.close(record)
        if not len(self.journal):
            self._idle.set()

    def _start(self, record: StreamRecord, kept: AbstractSet[str]) -> bool:
        """Hand the head of a lane over if a worker has room for it; tells whether it waits no longer."""
        worker = self.fleet.choose(record, kept)
        if worker is None:
            return False
        if not self._meets_deadline(record, worker):
            error = DeadlineExceeded("the deadline leaves no time for a first token; no token was made")
            self.abort(record, error)
            return True
        self._door.start(record)
        self._leave_by.pop(record.number, None)
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
