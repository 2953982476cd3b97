"""How long the machine has slept: the monotonic clock stands still in a suspend, and the law has to know of it."""

import time


class SleepMeter:
    """Seconds of suspend since this was made; always 0 where the system cannot tell."""

    def __init__(self) -> None:
        self._start_s = _offset_s()

    def slept_s(self) -> float:
        return max(0.0, _offset_s() - self._start_s)


def _offset_s() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if clock is None else time.clock_gettime(clock) - time.monotonic()
