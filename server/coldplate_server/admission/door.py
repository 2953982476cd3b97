"""Who may wait, and what is told to those who may not.

Three rules, from the slow and exact to the quick and rough. The limit of a lane (``wait_limit``) holds its wait at the
target. A stream that by the drain rate would wait twice the target is refused when it comes, and so is one that would
wait twice as long as it is willing to. And when engines become slower, those who would now wait too long are told so at
once instead of at the end.

What has room at an engine starts, whatever the limits: they are for waiting only, so that no slot idles.
"""

import math
from collections.abc import Callable

from coldplate.clock import Clock
from coldplate_server.admission.accounts import Accounts
from coldplate_server.admission.lane import Lane
from coldplate_server.admission.policy import LATE
from coldplate_server.errors import Overloaded, QueueFull, RequestError, Shed
from coldplate_server.journal import StreamRecord
from coldplate_server.request_queue import RequestQueue

_SETTLE_S = 0.05
_UNSURE = 2.0  # an estimate has to miss a caller's own time limit by so much before it counts
_MIN_RETRY_S, _MAX_RETRY_S = 0.5, 30.0

Refusal = tuple[StreamRecord, RequestError]
Spare = Callable[[StreamRecord], bool]


class Door:
    """Bounds the queue and keeps its books. ``cooling_s`` tells how long a model's devices will stay closed."""

    def __init__(self, queue: RequestQueue, clock: Clock, cooling_s: Callable[[str], float]) -> None:
        self._queue = queue
        self._policy = queue.policy
        self._clock = clock
        self._cooling_s = cooling_s
        self._accounts = Accounts(queue.policy)
        self._settled_s = -math.inf

    def advance(self) -> None:
        """Bring the books up to now. Called before streams start, as often as engines make steps."""
        now = self._clock.now()
        if now - self._settled_s >= _SETTLE_S:
            self._settled_s = now
            self._accounts.settle()
        for drain, blocked in self._queue.drains():
            drain.advance(now, blocked=blocked)

    def start(self, record: StreamRecord) -> None:
        """A waiting stream goes to an engine. Call it before the engine has it."""
        lane, now = self._queue.lane(record), self._clock.now()
        item = lane.pop(record)
        assert item is not None
        self._accounts.start(lane, item)
        if not item.queued:
            lane.drain.let_in(item.tokens, lane.priority, now)
        if item.queued or self._queue.blocked(record.model):
            lane.drain.started(item.tokens)
        if record.sibling_of is None:
            lane.limit.started(now - item.since_s, item.since_s)

    def leave(self, record: StreamRecord) -> bool:
        """A stream is over or given up, wherever it is; tells whether it was waiting."""
        item = self._queue.pop(record)
        if item is None:
            self._accounts.end(record)
            return False
        share = self._queue.lane(record).share
        share.stop_waiting(record.tenant)
        share.leave(record.tenant)
        return True

    def tick(self, spare: Spare) -> list[Refusal]:
        """Move the limits, several times a second; tells who of those who wait must go.

        ``spare`` tells of streams whose request has begun: those only wait for room.
        """
        self._settled_s = -math.inf
        self.advance()
        now = self._clock.now()
        for drain, blocked in self._queue.drains():
            drain.rate.tick(now, full=blocked)
        found: list[Refusal] = []
        for lane in self._queue.lanes:
            expected = lane.expected_wait_s(lane.waiting_tokens) if lane.blocked else None
            lane.limit.tick(now, lane.waiting_tokens, expected, blocked=lane.blocked)
            if lane.blocked:
                found += self._late(lane, now, spare)
        return found

    def turn_away(self, newcomer: StreamRecord, spare: Spare) -> Refusal | None:
        """Who must go now that ``newcomer`` waits: it, or one that it displaces. None when all may stay.

        To be asked when there was no room for it, and again after each one that went.
        """
        lane = self._queue.lane(newcomer)
        item = lane.get(newcomer)
        item.queued = True
        refusal = self._crowded(lane, newcomer, spare)
        if refusal is None:
            lane.drain.let_in(item.tokens, lane.priority, self._clock.now())
        return refusal

    def _crowded(self, lane: Lane, newcomer: StreamRecord, spare: Spare) -> Refusal | None:
        if len(self._queue) > self._policy.max_waiting:
            return self._full(newcomer, spare)
        if spare(newcomer) or len(lane) <= self._policy.floor_requests:
            return None
        limit = lane.limit.tokens
        if limit is not None and lane.waiting_tokens > limit:
            last = _last(lane, newcomer, spare)
            return last, self._overloaded(lane, last) if last is newcomer else self._displaced(lane, last)
        expected = self.expected_wait_s(newcomer)
        if expected is not None and expected > LATE * lane.target_s:
            return newcomer, self._overloaded(lane, newcomer)
        return None

    def expected_wait_s(self, record: StreamRecord) -> float | None:
        """How long a waiting stream will go on waiting; None if not known."""
        lane = self._queue.lane(record)
        return lane.expected_wait_s(lane.ahead(record)[1] + lane.get(record).tokens)

    def hopeless(self, record: StreamRecord, left_s: float) -> bool:
        """Whether a waiting stream will surely not start within ``left_s``."""
        expected = self.expected_wait_s(record)
        return expected is not None and expected > _UNSURE * left_s

    def retry_after_s(self, record: StreamRecord) -> float:
        """When a stream like this one, which waits, would find the queue half as long as it may be."""
        lane = self._queue.lane(record)
        expected = self.expected_wait_s(record)
        after = self._queue.last_wait_s if expected is None else expected - lane.target_s / 2
        if lane.limit.tokens is not None:
            after = max(after, lane.expected_wait_s(max(0, round(lane.waiting_tokens - lane.limit.tokens / 2))) or 0.0)
        return max(_MIN_RETRY_S, min(after, _MAX_RETRY_S), self._cooling_s(record.model))

    def _late(self, lane: Lane, now: float, spare: Spare) -> list[Refusal]:
        """Those who have waited too long, or by the drain rate would from now on."""
        most_s, tokens = LATE * lane.target_s, 0
        found: list[Refusal] = []
        for index, (_, _, item) in enumerate(lane.schedule()):
            expected = lane.expected_wait_s(tokens + item.tokens)
            late = now - item.since_s > most_s or (expected is not None and expected > most_s)
            if late and index >= self._policy.floor_requests and not spare(item.record):
                found.append((item.record, self._given_up(lane, item.record, now - item.since_s)))
            else:
                tokens += item.tokens
        return found

    def _full(self, newcomer: StreamRecord, spare: Spare) -> Refusal:
        """The lowest class loses its last, and of that class the model that waits most."""
        own, used = self._queue.lane(newcomer), [lane for lane in self._queue.lanes if len(lane)]
        lowest = min(lane.priority for lane in used)
        lane = max((lane for lane in used if lane.priority == lowest), key=lambda lane: (len(lane), lane is own))
        last = _last(lane, newcomer, spare)
        if last is not newcomer:
            return last, self._displaced(lane, last)
        own.refused += 1
        after = self.retry_after_s(newcomer)
        waiting = len(self._queue) - 1
        return newcomer, QueueFull(
            f"the queue is full: {waiting} requests wait already; try again in {after:.1f} s",
            retry_after_s=after,
            queue_limit=self._policy.max_waiting,
        )

    def _overloaded(self, lane: Lane, record: StreamRecord) -> Overloaded:
        lane.refused += 1
        return _overload(lane, self.retry_after_s(record), self.expected_wait_s(record))

    def _given_up(self, lane: Lane, record: StreamRecord, waited_s: float) -> Overloaded:
        lane.shed += 1
        return _overload(lane, self.retry_after_s(record), self.expected_wait_s(record), waited_s)

    def _displaced(self, lane: Lane, record: StreamRecord) -> Shed:
        lane.shed += 1
        after = self.retry_after_s(record)
        return Shed(
            "its place in the queue went to a request of a higher class, or of a caller who has had less; "
            f"no token was made; try again in {after:.1f} s",
            retry_after_s=after,
        )


def _last(lane: Lane, newcomer: StreamRecord, spare: Spare) -> StreamRecord:
    """Who of a lane would go last, which is of the tenant with the largest counter; the newcomer if all are spared."""
    order = [item.record for _, _, item in lane.schedule() if not spare(item.record)]
    return order[-1] if order else newcomer


def _overload(lane: Lane, after_s: float, expected_s: float | None, waited_s: float = 0.0) -> Overloaded:
    facts: dict[str, object] = {"wait_target_s": f"{lane.target_s:g}"}
    text = f"{len(lane)} requests of priority {lane.priority.name.lower()} wait"
    if expected_s is not None and expected_s < math.inf:
        facts["expected_wait_s"] = f"{expected_s:.1f}"
        text += f", this one for about {expected_s:.0f} s"
    if waited_s:
        facts["waited_s"] = f"{waited_s:.1f}"
        text += f" more after {waited_s:.1f} s"
    return Overloaded(f"{text}; no token was made; try again in {after_s:.1f} s", retry_after_s=after_s, **facts)
