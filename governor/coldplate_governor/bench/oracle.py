"""The oracle: full power until the limit, then hold the limit (Cohen et al., Computer Architecture Letters 2003).

It looks at the true junction and heatsink and knows the card's numbers and the load's. Each second every chip gets the
duty that brings its junction to the limit at the end of that second.
"""

from collections.abc import Sequence

from coldplate_governor.twin.control import Command, Sight
from coldplate_governor.twin.load import Engine
from coldplate_governor.twin.plant import Card
from coldplate_governor.twin.plants import Plant

_LEAST = 1e-3


class Oracle:
    """Holds ``limit_celsius``. On a plant with work levels it chooses in each second the level that gives most tokens;
    it does not mix levels within a second."""

    def __init__(self, plant: Plant, card: Card, engines: Sequence[Engine], limit_celsius: float) -> None:
        self._card, self._engines, self._limit = card, engines, limit_celsius
        self._levels = plant.work_levels or (1.0,)
        self._commands = [Command(mode="ORACLE") for _ in engines]

    def tick(self, now_s: float, sights: Sequence[Sight]) -> Sequence[Command]:
        model = self._card.model
        span = model.max_watts - model.idle_watts
        for index, (chip, command) in enumerate(zip(self._card.chips, self._commands, strict=True)):
            intensity = self._engines[index].intensity
            flow = (self._limit - self._card.sink_celsius) / model.junction_resistance
            heat = flow + model.junction_capacity * (self._limit - chip.junction_celsius)
            leak = 1 + model.leakage_per_celsius * max(0.0, self._limit - model.leakage_from_celsius)
            share = (heat / leak - model.idle_watts) / (span * intensity)
            command.duty, command.clock = self._best(share, model.clock_exponent)
        return self._commands

    def _best(self, share: float, exponent: float) -> tuple[float, float]:
        """Duty and clock with most tokens for a share of dynamic power."""
        best, duty, clock = -1.0, 1.0, 1.0
        for level in self._levels:
            possible = min(1.0, max(_LEAST, share / level**exponent))
            if possible * level > best + 1e-12:
                best, duty, clock = possible * level, possible, level
        return duty, clock
