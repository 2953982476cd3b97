"""Where a step's time goes, part by part."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

PARTS = ("schedule", "host_prep", "copy", "device", "sample", "idle", "paced")


class StepTimer:
    """Seconds by part of one step."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside the block as part ``name``, one of ``PARTS``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    @property
    def busy_s(self) -> float:
        """All but waiting and pacing."""
        return sum(self.seconds.values()) - self.seconds["idle"] - self.seconds["paced"]
