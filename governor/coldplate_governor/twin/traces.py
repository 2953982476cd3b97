"""What happens to a plant over time: load, air, contact of the heatsink, limits set by hand, a lying sensor."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from coldplate_governor.twin.plants import COOLER_CELSIUS, HOTTER_CELSIUS
from coldplate_governor.twin.sensor import FAULT_KINDS, FaultKind, SensorFault

SQUARE_HIGH_S, SQUARE_LOW_S, SQUARE_LOW_DEMAND = 240, 120, 0.15
AMBIENT_UP_S, AMBIENT_DOWN_S, STEADY_S = 2400, 4800, 7200
CAP_FROM_S, CAP_UNTIL_S, CAP_DUTY = 900, 2100, 0.35
FAULT_FROM_S, FAULT_LASTS_S = 900, 120
CONTACT_LOST_S, CONTACT_BACK_S = 900, 1500

Demand = Callable[[int, int], float]  # second, chip -> share of the time there is work


@dataclass(frozen=True, slots=True)
class Trace:
    """One story a plant lives through, in whole seconds.

    ``demand(second, chip)`` is the share of time with work. ``arrivals`` are the streams that come in each second, for
    every chip alike; None is a queue that never empties. ``ambient_steps`` are (second, degC above the plant's own).
    ``delay_s`` overrides the sensor's own delay. ``contact`` is the time without contact between chip and heatsink.
    ``warm``: it begins 10 degC below the target instead of at the air's temperature.
    """

    name: str
    seconds: int
    demand: Demand = field(default=lambda second, chip: 1.0)
    arrivals: Sequence[int] | None = None
    ambient_steps: tuple[tuple[int, float], ...] = ()
    cap: tuple[int, int, float] | None = None
    fault: SensorFault | None = None
    contact: tuple[int, int] | None = None
    delay_s: int | None = None
    warm: bool = False

    @property
    def healthy(self) -> bool:
        """Sensors tell the truth and the heatsink is where it belongs."""
        return self.fault is None and self.contact is None


def steady() -> Trace:
    """Two hours of full load; the air gets 12 degC hotter after 40 minutes and 15 degC cooler after another 40."""
    steps = ((AMBIENT_UP_S, HOTTER_CELSIUS), (AMBIENT_DOWN_S, HOTTER_CELSIUS + COOLER_CELSIUS))
    return Trace("steady", STEADY_S, ambient_steps=steps)


def square() -> Trace:
    """An hour of full load for 240 s and almost none for 120 s, in turns."""
    return Trace("square", 3600, demand=_square)


def bursty(seed: int, per_s: float, delay_s: int | None = None) -> Trace:
    """An hour of Poisson arrivals whose rate changes between lulls and bursts; on average ``per_s`` streams a second
    for each chip."""
    rng = Random(f"{seed}/arrivals")
    arrivals: list[int] = []
    burst = True
    while len(arrivals) < 3600:
        rate = per_s * (1.8 if burst else 0.2)
        arrivals += [_poisson(rate, rng) for _ in range(max(10, int(rng.expovariate(1 / 120))))]
        burst = not burst
    return Trace(
        "bursty" if delay_s is None else f"bursty, {delay_s} s delay", 3600, arrivals=arrivals, delay_s=delay_s
    )


def released_cap() -> Trace:
    """Full load under a duty of 0.35 set by hand for 20 minutes, then released."""
    return Trace("released cap", CAP_UNTIL_S + 900, cap=(CAP_FROM_S, CAP_UNTIL_S, CAP_DUTY), warm=True)


def uneven() -> Trace:
    """An hour in which the first chip is always busy and the others come and go: for cards of several chips."""
    return Trace("uneven chips", 3600, demand=lambda second, chip: 1.0 if chip == 0 else _square(second, chip))


def lying(kind: FaultKind) -> Trace:
    """The first chip's sensor does ``kind`` for 120 s under full load."""
    fault = SensorFault(kind, FAULT_FROM_S, FAULT_FROM_S + FAULT_LASTS_S)
    return Trace(f"sensor {kind}", FAULT_FROM_S + FAULT_LASTS_S + 240, fault=fault, warm=True)


def lies() -> list[Trace]:
    return [lying(kind) for kind in FAULT_KINDS]


def contact_lost() -> Trace:
    """The heatsink comes off for ten minutes under full load, and is put back."""
    return Trace("contact lost", CONTACT_BACK_S + 600, contact=(CONTACT_LOST_S, CONTACT_BACK_S), warm=True)


def _square(second: int, chip: int) -> float:
    return 1.0 if second % (SQUARE_HIGH_S + SQUARE_LOW_S) < SQUARE_HIGH_S else SQUARE_LOW_DEMAND


def _poisson(mean: float, rng: Random) -> int:
    limit, product, count = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        count += 1
    return count
