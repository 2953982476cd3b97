"""Clients of the field report's board: how requests begin, wait, are refused, run and end, second by second."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from coldplate_governor.bench.field_fit import FieldModel, request_sizes

_QUEUE_PLACES = 2  # of the governed server; a request that would wait behind more is told when to come back
_SEND_APART_S = 1.0


@dataclass(slots=True)
class Request:
    """One request; seconds of virtual time. ``begun_s`` None: it waits."""

    sent_s: float
    size: float
    begun_s: float | None = None
    tokens: float = 0.0


@dataclass(slots=True)
class Tally:
    """What became of requests. Latencies in seconds with the moment they ended; waiting counts."""

    done: list[tuple[float, float]]
    failed: int = 0
    refused: int = 0


class Waves:
    """What the report ran: all clients send at once, nothing is held back, and what finds no memory fails. The next
    wave comes when the last request of this one has ended."""

    def __init__(self, model: FieldModel, streams: int, seed: str) -> None:
        self._model, self._streams = model, streams
        self._rng = Random(seed)
        self.running: list[Request] = []
        self.tally = Tally([])

    def send(self, now_s: float) -> None:
        if self.running:
            return
        left = self._model.memory_requests
        for size in request_sizes(self._rng, self._streams):
            if size <= left:
                left -= size
                self.running.append(Request(now_s, size, now_s))
            else:
                self.tally.failed += 1

    def finish(self, request: Request, at_s: float) -> None:
        self.running.remove(request)
        self.tally.done.append((at_s, at_s - request.sent_s))


class Admitted:
    """The same clients before a server that admits only what finds its memory, holds a short queue, and tells the
    others when to come back. A refused client waits as long as it was told; an answered one asks again."""

    def __init__(self, model: FieldModel, streams: int, seed: str, pace: Callable[[], float]) -> None:
        self._model, self._pace = model, pace
        self._rng = Random(seed)
        self._next = [index * _SEND_APART_S for index in range(streams)]  # when a client without a request asks
        self._queue: list[Request] = []
        self.running: list[Request] = []
        self.tally = Tally([])

    def send(self, now_s: float) -> None:
        self._admit(now_s)
        for due in sorted(self._next):
            if due > now_s:
                break
            self._next.remove(due)
            if len(self._queue) < _QUEUE_PLACES:
                self._queue.append(Request(now_s, request_sizes(self._rng, 1)[0]))
                self._admit(now_s)
            else:
                self.tally.refused += 1
                self._next.append(now_s + max(1.0, self._model.request_tokens / max(self._pace(), 0.01)))

    def finish(self, request: Request, at_s: float) -> None:
        self.running.remove(request)
        self.tally.done.append((at_s, at_s - request.sent_s))
        self._next.append(at_s)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def _admit(self, now_s: float) -> None:
        used = sum(request.size for request in self.running)
        while self._queue and used + self._queue[0].size <= self._model.memory_requests:
            request = self._queue.pop(0)
            request.begun_s = now_s
            used += request.size
            self.running.append(request)
