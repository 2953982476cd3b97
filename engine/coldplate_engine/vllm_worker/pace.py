"""An engine core's time: what of it was computing, and the rests that a duty limit asks for."""

import time
from collections.abc import Callable

from coldplate_engine.pacer import DutyPacer

_LONGEST_NAP_S = 0.05  # then the core looks after its inbox
_GLANCE_S = 0.002  # how soon new limits are seen in a nap
_DRAIN_AFTER_S = 0.02


class CorePace:
    """Keeps account of one core. Batches may overlap: time is busy while any is in flight."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.in_flight = 0
        self.paced_s = 0.0
        self.idle_s = 0.0
        self._pacer = DutyPacer()
        self._clock = clock
        self._sleep = sleep
        self._marked = clock()

    def set_duty(self, duty: float) -> None:
        self._pacer.set_duty(duty)

    def account(self, busy: bool = False) -> float:
        """Charge the time since the last call, to computing when ``busy`` or a batch is in flight; returns it."""
        now = self._clock()
        passed, self._marked = now - self._marked, now
        if busy or self.in_flight:
            self._pacer.worked(passed)
        else:
            self._pacer.rested(passed)
            self.idle_s += passed
        return passed

    def rest(self, glance: Callable[[], None]) -> bool:
        """Sleep off what is owed, calling ``glance`` at short intervals; True when more is owed and no batch may start.

        While batches are in flight there is no rest: then they are let run out once a worthwhile rest has gathered.
        """
        self.account()
        if self.in_flight:
            return self._pacer.rest_s() > _DRAIN_AFTER_S
        self.nap(self._pacer.rest_s, glance)
        return self._pacer.rest_s() > 0

    def nap(self, left_s: Callable[[], float], glance: Callable[[], None], longest_s: float = _LONGEST_NAP_S) -> None:
        """Sleep while ``left_s`` tells a time, but not for long; counted as paced."""
        until = self._clock() + longest_s
        while (left := min(left_s(), until - self._clock())) > 0:
            self._sleep(min(left, _GLANCE_S))
            passed = self.account()
            self.idle_s -= passed
            self.paced_s += passed
            glance()
