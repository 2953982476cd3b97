"""The one way to read time: monotonic, and injected so that tests and replays can hold it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Anything that tells monotonic seconds."""

    def now(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds`` (at least 0)."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {seconds} s")
        self._now_s += seconds
