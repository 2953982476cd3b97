"""Which readings to believe, and when a quantity is absent or lost.

A quantity never seen valid is absent and claims nothing; one that was valid and has stopped is lost.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from coldplate_governor.sensors.base import QUANTITIES, Quantity

FRESH_S = 5.0
SAME_SAMPLE_S = 0.05  # two samples closer than this are one measurement that was handed on twice
FROZEN_S = 60.0
FROZEN_POWER_SHARE = 0.2
FALL_CONFIRM_S = 30.0  # a sensor that lies low is dangerous, and a chip that has really cooled is in no hurry
FORGET_S = 300.0  # after so long what was believed says nothing of what can be

Standing = Literal["absent", "fresh", "lost"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of one quantity from one source, taken at ``at_s`` of the monotonic clock.

    ``problem`` says why it is not to be believed; None when it is.
    """

    source: str
    quantity: str
    value: float | None
    unit: str
    at_s: float
    problem: str | None = None

    @property
    def valid(self) -> bool:
        return self.problem is None


@dataclass(slots=True)
class _Doubt:
    """A value that waits for others that agree, and when the first of them came."""

    value: float
    since_s: float


class QuantityTrack:
    """What matters of one quantity from one source: the last believed value, and what is doubted or stands still."""

    def __init__(self, source: str, name: str) -> None:
        self.source = source
        self.name = name
        self.quantity = QUANTITIES[name]
        self.last_valid: Reading | None = None
        self.last_problem: str | None = None
        self._latest: Reading | None = None
        self._doubt: _Doubt | None = None
        self._still = _Still()

    def accept(self, raw: Any, at_s: float, others: Iterable[float] = (), watts: float | None = None) -> Reading:
        """Judge a raw value; a believed one becomes ``last_valid``.

        ``others`` are what other sources say of the same quantity now, ``watts`` a smoothed power of the device.
        """
        if self._latest is not None and at_s - self._latest.at_s < SAME_SAMPLE_S:
            return self._latest
        problem = implausible(self.quantity, raw)
        value = None if problem else float(raw)
        if value is not None:
            self._still.see(value, at_s, watts)
            problem = self._doubted(value, at_s, list(others)) or self._frozen(value, at_s)
        reading = Reading(self.source, self.name, value if problem is None else None, self.quantity.unit, at_s, problem)
        self._latest = reading
        self.last_problem = problem
        if reading.valid:
            self.last_valid = reading
        return reading

    def age_s(self, now_s: float) -> float | None:
        """Seconds since the last believed reading, None when there never was one."""
        return None if self.last_valid is None else max(0.0, now_s - self.last_valid.at_s)

    def standing(self, now_s: float) -> Standing:
        age = self.age_s(now_s)
        if age is None:
            return "absent"
        return "fresh" if age < self.quantity.fresh_s else "lost"

    def fresh_value(self, now_s: float) -> float | None:
        """The last believed value while it counts."""
        return self.last_valid.value if self.last_valid and self.standing(now_s) == "fresh" else None

    def forget_power(self) -> None:
        """Another sensor tells the power from now on: what was seen of it before cannot be compared."""
        self._still.forget_power()

    def _doubted(self, value: float, at_s: float, others: list[float]) -> str | None:
        """Why ``value`` needs a second opinion that has not come; None when it needs none or has it."""
        quantity, jump = self.quantity, self.quantity.jump
        if jump is None:
            return None
        before = self.last_valid.value if self.last_valid and at_s - self.last_valid.at_s < FORGET_S else None
        problem, falls = None, False
        if before is not None and value < before - jump:
            # However long it took: no junction falls so far between two samples, and no load or fan explains it later.
            problem, falls = f"fell from {before:g} to {value:g} {quantity.unit}", True
        elif before is None or self.standing(at_s) == "lost":
            if quantity.confirmed:
                problem = f"{value:g} {quantity.unit} is the first reading after none: a second one must agree"
        elif value > before + max(jump, quantity.per_second * self._since_valid_s(at_s)):
            problem = f"jumped from {before:g} to {value:g} {quantity.unit}"
        if problem is None or any(abs(value - other) <= jump for other in others):
            self._doubt = None
            return None
        doubt = self._doubt
        if doubt is None or abs(value - doubt.value) > jump:
            self._doubt = _Doubt(value, at_s)
            return problem
        doubt.value = value
        # Two samples in a row that agree are a real rise: the filter must not blind the guard to it.
        if falls and at_s - doubt.since_s < FALL_CONFIRM_S:
            return f"{problem}: to be believed it must stay there for {FALL_CONFIRM_S:g} s"
        self._doubt = None
        return None

    def _frozen(self, value: float, at_s: float) -> str | None:
        still = self._still
        if not self.quantity.confirmed or not still.frozen(at_s):
            return None
        low, high = still.low_watts, still.high_watts
        return (
            f"frozen at {value:g} {self.quantity.unit} for {at_s - still.since_s:.0f} s while the power went from "
            f"{low:.1f} to {high:.1f} W"
        )

    def _since_valid_s(self, at_s: float) -> float:
        return at_s - self.last_valid.at_s if self.last_valid else 0.0


@dataclass(slots=True)
class _Still:
    """Since when a value has not changed to the last digit, and between what the power has moved since."""

    value: float | None = None
    since_s: float = 0.0
    low_watts: float = math.inf
    high_watts: float = -math.inf

    def see(self, value: float, at_s: float, watts: float | None) -> None:
        if value != self.value:
            self.value, self.since_s = value, at_s
            self.forget_power()
        if watts is not None:
            self.low_watts, self.high_watts = min(self.low_watts, watts), max(self.high_watts, watts)

    def forget_power(self) -> None:
        self.low_watts, self.high_watts = math.inf, -math.inf

    def frozen(self, at_s: float) -> bool:
        moved = self.high_watts - self.low_watts
        return at_s - self.since_s >= FROZEN_S and moved > FROZEN_POWER_SHARE * self.high_watts > 0


def implausible(quantity: Quantity, raw: Any) -> str | None:
    """Why ``raw`` cannot be a reading of ``quantity``, or None."""
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return f"{str(raw)[:40]!r} is no number"
    try:
        value = float(raw)
    except OverflowError:
        return "is too large a number"
    if not math.isfinite(value):
        return f"{value} is not finite"
    if value in quantity.sentinels:
        return f"{value:g} {quantity.unit} stands for no reading"
    if not quantity.low <= value <= quantity.high:
        return f"{value:g} {quantity.unit} is outside {quantity.low:g} to {quantity.high:g}"
    return None
