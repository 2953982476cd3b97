"""How fast the queue of a model goes down: what a wait is estimated from, and nothing else."""

import math
from collections import deque
from dataclasses import dataclass

from coldplate_server.request import Priority

_MEMORY_S = 5.0
_MEMORY_STARTS = 16
_MOST_STARTS = 512
_LEAST_STARTS = 4
_RATE_TIME_S = 5.0
_LEAST_SHARE = 0.1
_SLOWER, _FASTER = 0.1, 3.0  # how far the present token rate may move an estimate


class TokenRate:
    """Tokens of answers that the engines of one model make: all of them so far, and per second while they are full."""

    def __init__(self) -> None:
        self.made = 0
        self.per_s: float | None = None  # mean over about five seconds; None before it was measured
        self._counted = 0
        self._at_s: float | None = None
        self._full = False

    def tick(self, now_s: float, *, full: bool) -> None:
        """Called several times a second; ``full`` tells that somebody waits for room."""
        dt = 0.0 if self._at_s is None else now_s - self._at_s
        if dt > 0 and full and self._full:
            rate = (self.made - self._counted) / dt
            share = 1 - math.exp(-dt / _RATE_TIME_S)
            self.per_s = rate if self.per_s is None else self.per_s + share * (rate - self.per_s)
        if dt > 0 or self._at_s is None:
            self._at_s, self._counted, self._full = now_s, self.made, full


class _Inflow:
    """Tokens per second let in of late, with a memory that fades."""

    def __init__(self) -> None:
        self._per_s = 0.0
        self._at_s = 0.0

    def add(self, tokens: int, now_s: float) -> None:
        self._per_s, self._at_s = self.per_s(now_s) + tokens / _RATE_TIME_S, now_s

    def per_s(self, now_s: float) -> float:
        return self._per_s * math.exp(-max(0.0, now_s - self._at_s) / _RATE_TIME_S)


@dataclass(frozen=True, slots=True)
class _Start:
    busy_s: float
    made: int
    tokens: int


class DrainRate:
    """Tokens per second that leave the queue of a model, measured while somebody in it waits for room.

    The last starts, at least 16 and at least 5 s of them, give the rate. It is scaled by how fast tokens are made now
    against how fast they were made then, so that a device that is slowed down shows at once and not only when its
    streams end. A class waits for what is ahead of it in those above, and has what they do not take: the rate less that
    at which they are let in, and a tenth of it at least, for a burst above is no reason to give up all who wait below.
    """

    def __init__(self) -> None:
        self.rate = TokenRate()
        self._busy_s = 0.0
        self._made = 0  # by the engines, while somebody waited
        self._seen_s: float | None = None
        self._seen_made = 0
        self._starts: deque[_Start] = deque(maxlen=_MOST_STARTS)
        self._inflows = {priority: _Inflow() for priority in Priority}
        self.waiting = dict.fromkeys(Priority, 0)  # tokens, by class

    def advance(self, now_s: float, *, blocked: bool) -> None:
        """Time passed until ``now_s``, in which somebody waited for room or nobody did."""
        if self._seen_s is not None and blocked:
            self._busy_s += max(0.0, now_s - self._seen_s)
            self._made += self.rate.made - self._seen_made
        self._seen_s, self._seen_made = now_s, self.rate.made

    def let_in(self, tokens: int, priority: Priority, now_s: float) -> None:
        """A stream started when it came, or may wait."""
        self._inflows[priority].add(tokens, now_s)

    def started(self, tokens: int) -> None:
        """A stream went to an engine that had waited, or that others waited behind."""
        self._starts.append(_Start(self._busy_s, self._made, tokens))
        while len(self._starts) > _MEMORY_STARTS and self._starts[1].busy_s <= self._busy_s - _MEMORY_S:
            self._starts.popleft()

    @property
    def per_s(self) -> float | None:
        """Of all classes; None while too little is known."""
        if len(self._starts) < _LEAST_STARTS:
            return None
        first = self._starts[0]
        busy_s, made = self._busy_s - first.busy_s, self._made - first.made
        if busy_s <= 0:
            return None
        tokens = sum(start.tokens for start in self._starts) - first.tokens
        now = self.rate.per_s
        scale = min(_FASTER, max(_SLOWER, now * busy_s / made)) if now is not None and made > 0 else 1.0
        return tokens / busy_s * scale

    def wait_s(self, tokens: int, priority: Priority) -> float | None:
        """How long until so many waiting tokens of a class have left; None if not known."""
        per_s = self.per_s
        if per_s is None:
            return None
        above = [other for other in Priority if other > priority]
        now = self._seen_s or 0.0
        left = max(_LEAST_SHARE * per_s, per_s - sum(self._inflows[other].per_s(now) for other in above))
        ahead = tokens + sum(self.waiting[other] for other in above)
        return ahead / left if left > 0 else math.inf
