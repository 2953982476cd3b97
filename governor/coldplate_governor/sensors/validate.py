"""Which readings to believe, and when a quantity is absent or lost.

A quantity never seen valid is absent and claims nothing; one that was valid and has stopped is lost.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from coldplate_governor.sensors.base import QUANTITIES, Quantity

FRESH_S = 5.0

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


class QuantityTrack:
    """What matters of one quantity from one source: the last believed and the last doubted value."""

    def __init__(self, source: str, name: str) -> None:
        self.source = source
        self.name = name
        self.last_valid: Reading | None = None
        self.last_problem: str | None = None
        self._doubted: float | None = None

    def accept(self, raw: Any, at_s: float) -> Reading:
        """Judge a raw value; a believed one becomes ``last_valid``."""
        quantity = QUANTITIES[self.name]
        problem = implausible(quantity, raw)
        value = None if problem else float(raw)
        if value is not None and self._too_fast(quantity, value, at_s):
            problem = f"jumped from {self.last_valid.value:g} to {value:g} {quantity.unit}" if self.last_valid else None
            self._doubted = value
        elif value is not None:
            self._doubted = None
        reading = Reading(self.source, self.name, value, quantity.unit, at_s, problem)
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
        return "fresh" if age < FRESH_S else "lost"

    def _too_fast(self, quantity: Quantity, value: float, at_s: float) -> bool:
        if quantity.jump is None or self.last_valid is None or self.last_valid.value is None:
            return False
        allowed = max(quantity.jump, quantity.per_second * (at_s - self.last_valid.at_s))
        if abs(value - self.last_valid.value) <= allowed:
            return False
        # Two samples in a row that agree are a real jump: the filter must not blind the guard.
        return self._doubted is None or abs(value - self._doubted) > quantity.jump


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
