"""What a sensor is, and the quantities sensors may tell.

A sensor tells what it can measure now and leaves out what it cannot: an absent quantity is absent, never 0.
"""

from dataclasses import dataclass
from typing import Protocol


class SensorError(Exception):
    """The sensor could not be read just now; the text says why."""


class Sensor(Protocol):
    """One source of readings. ``read`` may block; it runs in the sensor agent, which can be killed."""

    name: str

    def read(self) -> dict[str, float]:
        """Quantities by name, units as in ``QUANTITIES``. Raises SensorError when nothing can be read."""
        ...


@dataclass(frozen=True, slots=True)
class Quantity:
    """Unit and plausible range of a quantity, values that mean "no reading", and how fast it can really change.

    Two samples may differ by ``jump`` at once and by ``per_second`` for each second between them; None is any.
    """

    unit: str
    low: float
    high: float
    sentinels: frozenset[float] = frozenset()
    jump: float | None = None
    per_second: float = 0.0


# What broken drivers, blank registers and failed conversions are known to return instead of a temperature.
_TEMPERATURE_SENTINELS = frozenset({0.0, -1.0, 127.0, 128.0, 255.0, 65535.0})

# Names are fields of coldplate.v1.Readings.
QUANTITIES: dict[str, Quantity] = {
    "temperature_celsius": Quantity("degC", 1, 125, _TEMPERATURE_SENTINELS, jump=8.0, per_second=3.0),
    "power_watts": Quantity("W", 0, 5_000, frozenset({0.0})),
    "utilization_percent": Quantity("%", 0, 100),
    "memory_used_bytes": Quantity("B", 0, 2.0**50),
    "memory_total_bytes": Quantity("B", 1, 2.0**50),
    "frequency_mhz": Quantity("MHz", 1, 10_000),
    "rated_frequency_mhz": Quantity("MHz", 1, 10_000),
    "memory_pressure_percent": Quantity("%", 0, 100),
    "cpu_pressure_percent": Quantity("%", 0, 100),
}
