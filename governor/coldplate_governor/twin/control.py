"""The seam between the twin and whatever steers it: what a controller sees of each chip, and what it asks for.

Both are reused from second to second: a controller that wants to keep a value copies it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Sight:
    """What can be seen of one chip now, raw and not validated. None: nothing came from that sensor.

    ``temperature_celsius`` is as old as the sensor is slow; ``at_s`` is when it was delivered. ``card_watts`` is of the
    whole card. ``busy_share`` is of the last second. ``operator_duty`` is a limit set by hand.
    ``clock_shares`` are the clocks that can be set; none: there is no such lever.
    """

    at_s: float = 0.0
    temperature_celsius: float | None = None
    card_watts: float | None = None
    utilization_percent: float | None = None
    frequency_mhz: float | None = None
    rated_frequency_mhz: float | None = None
    busy_share: float = 0.0
    running: int = 0
    waiting: int = 0
    decode_tokens_per_s: float = 0.0
    decode_steps_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    operator_duty: float | None = None
    clock_shares: tuple[float, ...] = ()


@dataclass(slots=True)
class Command:
    """What a controller asks of one chip: duty in (0, 1], a share of the rated clock, and the limits of the batch."""

    duty: float = 1.0
    clock: float = 1.0
    prefill_tokens: int | None = None
    max_batch: int | None = None
    admit: bool = True
    mode: str = ""


class Controller(Protocol):
    """Steers the chips of one card. Called once a virtual second, before that second is lived."""

    def tick(self, now_s: float, sights: Sequence[Sight]) -> Sequence[Command]:
        """One command for each chip, in the order of ``sights``."""
        ...
