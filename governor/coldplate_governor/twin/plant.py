"""A card as two thermal nodes, junction and heatsink, with the firmware's own protection.

    Cj dTj/dt = P (1 + leakage max(0, Tj - 60)) - (Tj - Ts) / Rf        for each chip
    Cs dTs/dt = sum (Tj - Ts) / Rf - (Ts - Ta) / Rs                     for the heatsink they share

Pure: time is what ``step`` is told. The numbers are estimates for a plausible card, not measurements of a product.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_MAX_STEP_S = 0.1  # explicit Euler; the fastest node has a time constant of about 5 s


@dataclass(frozen=True, slots=True)
class CardModel:
    """One card: watts per chip, resistances in degC/W, capacities in J/K, leakage per degC above its threshold.

    ``clock_exponent``: dynamic power goes with the clock to this power. 1 is a fixed voltage; a voltage that follows
    the clock makes it larger.
    """

    name: str
    chips: int
    idle_watts: float
    max_watts: float
    junction_resistance: float
    junction_capacity: float
    sink_resistance: float
    sink_capacity: float
    leakage_per_celsius: float = 0.0015
    leakage_from_celsius: float = 60.0
    clock_exponent: float = 1.0


@dataclass(frozen=True, slots=True)
class FirmwareCliff:
    """What the firmware does by itself: each step caps the clock to a share of the rated one.

    The cap is lifted once the junction has been below ``release_celsius`` for ``release_after_s``; a junction at
    ``power_off_celsius`` for ``power_off_after_s`` switches the chip off for good. Shaped after the Cambricon MLU290-M5
    manual (1/2, 1/4, 1/8, then a latched power-off); the first step is the 90 degC that Huawei advises to stay below.
    """

    steps: tuple[tuple[float, float], ...] = ((90.0, 0.5), (93.0, 0.25), (96.0, 0.125))
    release_celsius: float = 85.0
    release_after_s: float = 2.0
    power_off_celsius: float = 105.0
    power_off_after_s: float = 1.0

    def clock_share(self, celsius: float) -> float:
        """The share of the rated clock the firmware allows on the way up."""
        return min((share for at, share in self.steps if celsius >= at), default=1.0)


# Atlas 300I Pro: one 310P, 72 W. Atlas 300I Duo: two 310P under one heatsink, 150 W together, passive.
SINGLE_CARD = CardModel("300I Pro", 1, 18.0, 72.0, 0.18, 35.0, 0.62, 280.0)
DUO_CARD = CardModel("300I Duo", 2, 17.5, 75.0, 0.15, 35.0, 0.32, 500.0)
# A passive 8 to 25 W module: idle and full power from the parts list of the 200I A2, the rest estimates.
EDGE_MODULE = CardModel("200I A2", 1, 5.0, 22.0, 0.6, 12.0, 2.0, 250.0)

DECODE_INTENSITY = 0.8  # decode is bound by memory and draws less than prefill, whatever its batch (estimate)
SATURATING_TOKENS = 256  # tokens in a step from which compute is the bound (estimate)


def step_intensity(tokens: int) -> float:
    """Share of the span from idle to full power that a step of ``tokens`` tokens draws while it runs."""
    return DECODE_INTENSITY + (1 - DECODE_INTENSITY) * min(1.0, max(0, tokens) / SATURATING_TOKENS)


@dataclass(slots=True)
class ChipState:
    """One chip's junction, where the firmware stands with it, and the work level it was given from outside."""

    junction_celsius: float
    clock_share: float = 1.0
    powered: bool = True
    cliff_events: int = 0
    watts: float = 0.0
    cool_for_s: float = 0.0
    hot_for_s: float = 0.0
    work_level: float = 1.0

    @property
    def clock(self) -> float:
        """The share of the rated clock it runs at: the lower of its work level and what the firmware allows."""
        return min(self.clock_share, self.work_level)

    @property
    def slowdown(self) -> float:
        """How many times longer a step takes than at the rated clock."""
        return 1 / self.clock


class Card:
    """One card in virtual time. ``model`` may be replaced and ``ambient_celsius`` set between steps."""

    def __init__(
        self,
        model: CardModel,
        ambient_celsius: float,
        start_celsius: float | None = None,
        cliff: FirmwareCliff | None = None,
    ) -> None:
        self.model = model
        self.ambient_celsius = ambient_celsius
        self.cliff = cliff or FirmwareCliff()
        self.chips = [ChipState(ambient_celsius) for _ in range(model.chips)]
        self.sink_celsius = ambient_celsius
        self._first_cut_celsius = min([at for at, _ in self.cliff.steps] + [self.cliff.power_off_celsius])
        if start_celsius is not None:
            self.heat(start_celsius)

    def heat(self, celsius: float) -> None:
        """Put every junction at ``celsius`` and the heatsink where an idle chip keeps it."""
        for chip in self.chips:
            chip.junction_celsius = celsius
        self.sink_celsius = celsius - self.model.idle_watts * self.model.junction_resistance

    def step(self, seconds: float, loads: Sequence[float], max_step_s: float = _MAX_STEP_S) -> None:
        """Let ``seconds`` pass at the given load of each chip, 0 (idle) to 1 (full power at the rated clock).

        ``max_step_s`` bounds the Euler step; it must stay well below the junction's time constant, about 5 s.
        """
        if seconds <= 0:
            return
        count = max(1, math.ceil(seconds / max_step_s - 1e-9))
        self._euler(seconds / count, count, [min(1.0, max(0.0, load)) for load in loads])

    def power_on(self, index: int) -> None:
        """Power a chip that switched itself off on again."""
        chip = self.chips[index]
        chip.powered, chip.hot_for_s, chip.clock_share = True, 0.0, 1.0

    @property
    def watts(self) -> float:
        """What the card draws now."""
        return sum(chip.watts for chip in self.chips)

    def _euler(self, dt: float, count: int, loads: Sequence[float]) -> None:
        # Plain floats and names bound outside the loop: benchmarks run hundreds of hours of this.
        model, sink, first_cut = self.model, self.sink_celsius, self._first_cut_celsius
        idle, span, exponent = model.idle_watts, model.max_watts - model.idle_watts, model.clock_exponent
        leakage, leaks_from = model.leakage_per_celsius, model.leakage_from_celsius
        ambient, resistance, sink_resistance = self.ambient_celsius, model.junction_resistance, model.sink_resistance
        into_junction, into_sink = dt / model.junction_capacity, dt / model.sink_capacity
        chips = list(zip(self.chips, loads, strict=True))
        for _ in range(count):
            flows = 0.0
            for chip, load in chips:
                junction = chip.junction_celsius
                watts = 0.0
                if chip.powered:
                    clock = min(chip.clock_share, chip.work_level)
                    watts = idle + span * load * (clock if exponent == 1.0 else clock**exponent)
                    if junction > leaks_from:
                        watts *= 1 + leakage * (junction - leaks_from)
                flow = (junction - sink) / resistance
                flows += flow
                junction += into_junction * (watts - flow)
                chip.watts, chip.junction_celsius = watts, junction
                if junction >= first_cut or chip.clock_share < 1.0 or chip.hot_for_s:
                    self._firmware(chip, dt)
            sink += into_sink * (flows - (sink - ambient) / sink_resistance)
        self.sink_celsius = sink

    def _firmware(self, chip: ChipState, dt: float) -> None:
        cliff = self.cliff
        allowed = cliff.clock_share(chip.junction_celsius)
        if allowed < chip.clock_share:
            chip.clock_share = allowed
            chip.cliff_events += 1
        chip.cool_for_s = chip.cool_for_s + dt if chip.junction_celsius < cliff.release_celsius else 0.0
        if chip.cool_for_s >= cliff.release_after_s:
            chip.clock_share = 1.0
        chip.hot_for_s = chip.hot_for_s + dt if chip.junction_celsius >= cliff.power_off_celsius else 0.0
        if chip.hot_for_s >= cliff.power_off_after_s:
            chip.powered = False
