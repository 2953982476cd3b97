"""The only queue of the service: by model and priority, fair between tenants within a class."""

from collections.abc import Callable, Iterator

from coldplate_server.admission.drain import DrainRate
from coldplate_server.admission.lane import Lane, Waiting
from coldplate_server.admission.policy import AdmissionPolicy
from coldplate_server.journal import StreamRecord
from coldplate_server.request import Priority


class RequestQueue:
    """Streams that wait for an engine. Bounds are the door's affair (``admission/door.py``)."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self.policy = policy
        self.last_wait_s = 0.0
        self._lanes: dict[tuple[str, Priority], Lane] = {}
        self._drains: dict[str, DrainRate] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __iter__(self) -> Iterator[StreamRecord]:
        return iter([record for lane in self._lanes.values() for record in lane])

    @property
    def lanes(self) -> list[Lane]:
        """Every lane that was ever used, the highest class first."""
        return sorted(self._lanes.values(), key=lambda lane: -lane.priority)

    def drains(self) -> Iterator[tuple[DrainRate, bool]]:
        """Of each model, and whether somebody waits for room there."""
        for model, drain in self._drains.items():
            yield drain, self.blocked(model)

    def blocked(self, model: str) -> bool:
        return any(lane.blocked for lane in self._lanes.values() if lane.model == model)

    def lane(self, record: StreamRecord) -> Lane:
        """Where a stream waits, or would."""
        key = (record.model, record.priority)
        if key not in self._lanes:
            drain = self._drains.setdefault(record.model, DrainRate())
            self._lanes[key] = Lane(*key, self.policy, drain)
        return self._lanes[key]

    def push(self, record: StreamRecord, now_s: float) -> None:
        self.lane(record).push(record, now_s)

    def pop(self, record: StreamRecord) -> Waiting | None:
        """Take a stream out; None when it was not waiting."""
        return self.lane(record).pop(record)

    def heads(self, possible: Callable[[StreamRecord], bool] = lambda record: True) -> Iterator[StreamRecord]:
        """The first stream of each lane, highest priority first.

        Only heads may start: were a later, smaller request let past, a large one could wait for ever. Those that wait
        for more than room, because they are not ``possible``, hold up nobody. After removing a head the iteration goes
        on with the next of its lane; leave a head in place to pass its lane over.
        """
        for lane in self.lanes:
            lane.blocked = False
            while len(lane) and (head := lane.head(possible)) is not None:
                yield head
                if head in lane:
                    lane.blocked = True
                    break

    def position(self, record: StreamRecord) -> int:
        """How many streams for the same model are expected to start before this one."""
        above = sum(len(lane) for lane in self.lanes if lane.model == record.model and lane.priority > record.priority)
        return above + self.lane(record).ahead(record)[0]
