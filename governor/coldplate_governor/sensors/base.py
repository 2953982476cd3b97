"""What a sensor is, and the quantities and words sensors may tell.

A sensor tells what it can measure now and leaves out what it cannot: an absent quantity is absent, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Readings = Mapping[str, float | str]

# A sensor that hands on what was measured earlier says so under this key: seconds. It is no reading of its own.
AGE = "age_s"


class SensorError(Exception):
    """The sensor could not be read just now; the text says why. ``readings`` are what could be read all the same."""

    def __init__(self, text: str, readings: Readings | None = None) -> None:
        super().__init__(text)
        self.readings: Readings = readings or {}


class SensorUnusable(SensorError):
    """The sensor cannot work where this process runs: the device or the tool is not visible, or held elsewhere.

    Trying again at once is pointless; the text says what would have to change.
    """


class Sensor(Protocol):
    """One source of readings. ``read`` may block; it runs in the sensor agent, which can be killed."""

    name: str

    def read(self) -> Readings:
        """Quantities by name with units as in ``QUANTITIES``, and words as in ``WORDS``.

        Raises SensorError when something could not be read, SensorUnusable when nothing can be read here.
        """
        ...


@dataclass(frozen=True, slots=True)
class Quantity:
    """Unit and plausible range of a quantity, values that mean "no reading", and how fast it can really change.

    Two samples may differ by ``jump`` at once and by ``per_second`` for each second between them; None is any.
    ``fresh_s`` is how long a reading counts. ``confirmed``: the first reading after none needs a second one.
    ``fuse`` is what counts of several sources: the largest, the smallest or the newest.
    """

    unit: str
    low: float
    high: float
    sentinels: frozenset[float] = frozenset()
    jump: float | None = None
    per_second: float = 0.0
    fresh_s: float = 5.0
    confirmed: bool = False
    fuse: Literal["max", "min", "newest"] = "newest"


# What broken drivers, blank registers and failed conversions are known to return instead of a temperature. 0x7FFD and
# 0x7FFF are the board controller's own (invalid, failed).
_NO_TEMPERATURE = frozenset({0.0, -1.0, 127.0, 128.0, 255.0, 65535.0, 0x7FFD, 0x7FFF})
_SLOW_S = 60.0  # of pages that are read seldom
_FOREVER = float("inf")


def _temperature(fresh_s: float = 5.0) -> Quantity:
    return Quantity("degC", 1, 125, _NO_TEMPERATURE, 8.0, 3.0, fresh_s, confirmed=True, fuse="max")


# Names are fields of coldplate.v1.Readings.
QUANTITIES: dict[str, Quantity] = {
    "temperature_celsius": _temperature(),
    "board_temperature_celsius": _temperature(_SLOW_S),
    "memory_temperature_celsius": _temperature(_SLOW_S),
    "power_watts": Quantity("W", 0, 5_000, frozenset({0.0})),
    "card_power_watts": Quantity("W", 0, 5_000, frozenset({0.0}), fresh_s=15.0),
    "utilization_percent": Quantity("%", 0, 100),
    "memory_used_bytes": Quantity("B", 0, 2.0**50),
    "memory_total_bytes": Quantity("B", 1, 2.0**50),
    "memory_bandwidth_percent": Quantity("%", 0, 100, fresh_s=_SLOW_S),
    "frequency_mhz": Quantity("MHz", 1, 10_000, fresh_s=15.0),
    "rated_frequency_mhz": Quantity("MHz", 1, 10_000, fresh_s=_SLOW_S),
    "firmware_limit_celsius": Quantity("degC", 1, 125, _NO_TEMPERATURE, fresh_s=_FOREVER, fuse="min"),
    "reset_celsius": Quantity("degC", 1, 150, _NO_TEMPERATURE, fresh_s=_FOREVER, fuse="min"),
    "memory_pressure_percent": Quantity("%", 0, 100),
    "cpu_pressure_percent": Quantity("%", 0, 100),
}

HEALTH = ("ok", "warning", "alarm", "critical")  # from best to worst

# Readings that are words: how long one counts, in seconds, and the longest text believed.
WORDS: dict[str, tuple[float, int]] = {
    "health": (_SLOW_S, 16),  # one of HEALTH
    "throttle_cause": (5.0, 80),  # "none", or causes joined by "+": see throttle.py
    "error_codes": (_SLOW_S, 1024),  # event ids in hexadecimal with blanks between; "" when there is none
}
