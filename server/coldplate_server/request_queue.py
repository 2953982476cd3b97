"""The only queue of the service: bounded, by model and priority, first come first served within a class."""

from collections.abc import Callable, Iterator

from coldplate_server.errors import QueueFull
from coldplate_server.journal import StreamRecord
from coldplate_server.request import Priority


class RequestQueue:
    """Streams that wait for an engine. Removal from anywhere is O(1)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lanes: dict[tuple[str, Priority], dict[int, StreamRecord]] = {}
        self._size = 0
        self.last_wait_s = 0.0

    def __len__(self) -> int:
        return self._size

    def push(self, record: StreamRecord, retry_after_s: float) -> None:
        """Append a stream. Raises QueueFull carrying ``retry_after_s``."""
        if self._size >= self.limit:
            raise QueueFull(
                f"the queue is full: {self._size} requests wait already; try again in {retry_after_s:.1f} s",
                retry_after_s=retry_after_s,
                queue_limit=self.limit,
            )
        self._lanes.setdefault((record.model, record.priority), {})[record.number] = record
        self._size += 1

    def remove(self, record: StreamRecord) -> bool:
        """Take a stream out; tells whether it was waiting."""
        lane = self._lanes.get((record.model, record.priority))
        if lane is None or lane.pop(record.number, None) is None:
            return False
        self._size -= 1
        return True

    def heads(self, possible: Callable[[StreamRecord], bool] = lambda record: True) -> Iterator[StreamRecord]:
        """The first stream of each lane, highest priority first.

        Only heads may start: were a later, smaller request let past, a large one could wait for ever. Those that wait
        for more than room, because they are not ``possible``, hold up nobody. After removing a head the iteration goes
        on with the next of its lane; leave a head in place to pass its lane over.
        """
        for _, lane in sorted(self._lanes.items(), key=lambda item: -item[0][1]):
            while (head := next((record for record in lane.values() if possible(record)), None)) is not None:
                yield head
                if head.number in lane:
                    break

    def position(self, record: StreamRecord) -> int:
        """How many requests for the same model would start before this one."""
        ahead = 0
        for (model, priority), lane in self._lanes.items():
            if model != record.model or priority < record.priority:
                continue
            if priority > record.priority:
                ahead += len(lane)
            else:
                ahead += sum(1 for number in lane if number < record.number)
        return ahead

    def __iter__(self) -> Iterator[StreamRecord]:
        return iter([record for lane in self._lanes.values() for record in lane.values()])
