"""The streams of one model and class that wait for an engine, in the order in which they go."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from coldplate_server.admission.drain import DrainRate
from coldplate_server.admission.fair_share import FairShare
from coldplate_server.admission.policy import AdmissionPolicy
from coldplate_server.admission.wait_limit import WaitLimit
from coldplate_server.journal import StreamRecord
from coldplate_server.request import Priority

_ANSWERS, _LEAST_ANSWERS = 64, 4  # that the mean length of answers is taken over


@dataclass(slots=True)
class Waiting:
    """One stream in a lane. ``tokens`` are its prompt and the answer expected of it, ``cost`` what it would be charged.

    ``queued`` tells that there was no room for it when it came.
    """

    record: StreamRecord
    tokens: int
    cost: float
    since_s: float
    queued: bool = False


class Lane:
    """First the tenant with the smallest counter, of one tenant first come first served. Removal is O(1)."""

    def __init__(self, model: str, priority: Priority, policy: AdmissionPolicy, drain: DrainRate) -> None:
        self.model = model
        self.priority = priority
        self.target_s = policy.wait_target_s[priority]
        self.share = FairShare(policy.max_absent_tenants)
        self.drain = drain
        self.limit = WaitLimit(self.target_s, policy.probe_tokens)
        self.blocked = False  # whether a stream waits for room, and for nothing else
        self.waiting_tokens = 0
        self.running_tokens = 0  # of streams that engines have, as they were expected
        self.refused = 0  # at the door
        self.shed = 0  # while they waited
        self._policy = policy
        self._tenants: dict[str, dict[int, Waiting]] = {}
        self._size = 0
        self._answers = 0
        self._mean_answer = 0.0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[StreamRecord]:
        return iter([item.record for own in self._tenants.values() for item in own.values()])

    def __contains__(self, record: StreamRecord) -> bool:
        return record.number in self._tenants.get(record.tenant, ())

    def get(self, record: StreamRecord) -> Waiting:
        return self._tenants[record.tenant][record.number]

    def push(self, record: StreamRecord, now_s: float) -> None:
        answer = self._expected_answer(record)
        cost = self._policy.prompt_cost(record) + self._policy.answer_weight * answer
        item = Waiting(record, len(record.prompt_ids) + len(record.emitted) + answer, cost, now_s)
        self.share.join(record.tenant)
        self._tenants.setdefault(record.tenant, {})[record.number] = item
        self._count(item.tokens)
        self._size += 1

    def pop(self, record: StreamRecord) -> Waiting | None:
        """Take a stream out; None when it does not wait here."""
        own = self._tenants.get(record.tenant, {})
        item = own.pop(record.number, None)
        if item is not None:
            if not own:
                del self._tenants[record.tenant]
            self._count(-item.tokens)
            self._size -= 1
        return item

    def _count(self, tokens: int) -> None:
        self.waiting_tokens += tokens
        self.drain.waiting[self.priority] += tokens

    def answered(self, tokens: int) -> None:
        """A stream of this lane is over; its answer had so many tokens."""
        self._answers = min(self._answers + 1, _ANSWERS)
        self._mean_answer += (tokens - self._mean_answer) / self._answers

    def _expected_answer(self, record: StreamRecord) -> int:
        """Most callers ask for more than they get: it is the mean of late, if that is less than what is asked for."""
        asked = max(0, record.max_tokens - len(record.emitted))
        return min(asked, math.ceil(self._mean_answer)) if self._answers >= _LEAST_ANSWERS else asked

    def head(self, possible: Callable[[StreamRecord], bool]) -> StreamRecord | None:
        """Who goes next of those who wait for nothing but room."""
        order = sorted(self._tenants.items(), key=lambda entry: (self.share.counter(entry[0]), next(iter(entry[1]))))
        return next((item.record for _, own in order for item in own.values() if possible(item.record)), None)

    def schedule(self) -> list[tuple[float, int, Waiting]]:
        """All who wait as (start tag, number, stream), in the order in which they are expected to go.

        The tag is the tenant's counter once it has been charged for what it has waiting before.
        """
        tagged = []
        for tenant, own in self._tenants.items():
            tag = self.share.counter(tenant)
            for number, item in own.items():
                tagged.append((tag, number, item))
                tag += item.cost
        return sorted(tagged, key=lambda entry: entry[:2])

    def ahead(self, record: StreamRecord) -> tuple[int, int]:
        """Streams that go before one that waits here, and their tokens."""
        streams = tokens = 0
        for _, number, item in self.schedule():
            if number == record.number:
                break
            streams, tokens = streams + 1, tokens + item.tokens
        return streams, tokens

    def expected_wait_s(self, tokens: int) -> float | None:
        """How long until so many tokens have left; None if not known."""
        return self.drain.wait_s(tokens, self.priority)
