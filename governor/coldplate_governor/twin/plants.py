"""The plants of the benchmark: three kinds of hardware, each drawn many times with its parameters off by up to 40 %.

All numbers are estimates made from public part data (junction resistances, board power, heatsink rules); none is a
measurement of a product. What is drawn: idle power, dynamic power, both resistances, both capacities, and the
sensor's delay and noise.
"""

from dataclasses import dataclass, replace
from random import Random

from coldplate.profile import DeviceProfile, load_profile
from coldplate_governor.twin.load import LoadModel
from coldplate_governor.twin.plant import (
    DECODE_INTENSITY,
    DUO_CARD,
    EDGE_MODULE,
    SINGLE_CARD,
    CardModel,
    FirmwareCliff,
)
from coldplate_governor.twin.sensor import SensorModel

SPREAD = 0.4
HOTTER_CELSIUS = 12.0  # the ambient step of the steady trace
COOLER_CELSIUS = -15.0
# Dynamic power goes with clock to this power: speed is power to the 0.7, as in a voltage that follows the clock.
CLOCK_EXPONENT = 1 / 0.7
# Shares of the rated clock: AI-core clocks of the 20, 16 and 8 TOPS work levels of a 310B (1224, 1000 and 500 MHz).
WORK_LEVELS = (1.0, 1000 / 1224, 500 / 1224)
_POWER_OFF_ABOVE_CRITICAL = 5.0
_RESERVE_DUTY = 0.05
_BINDING_DUTY = 0.95


@dataclass(frozen=True, slots=True)
class Plant:
    """One card, its surroundings and its sensor, and the profile it is governed by.

    ``work_levels`` are the clocks that can be set from outside, as shares of the rated one; none: there is no such
    lever. ``reports_clock``: the sensors tell the present clock (a 310P does, a 310B does not).
    """

    name: str
    kind: str
    profile: DeviceProfile
    card: CardModel
    ambient_celsius: float
    cliff: FirmwareCliff
    sensor: SensorModel
    load: LoadModel
    actuator_lag_s: float = 0.5
    reports_clock: bool = True
    work_levels: tuple[float, ...] = ()


def cliff_at(celsius: float, power_off_celsius: float) -> FirmwareCliff:
    """A cliff like the Cambricon MLU290's, which has 1/2, 1/4 and 1/8 of dynamic power 1 degC apart and then powers
    off; here 2 degC apart. Released 5 degC below the first step, after 2 s."""
    steps = tuple((celsius + 2.0 * n, 0.5 ** ((n + 1) / CLOCK_EXPONENT)) for n in range(3))
    return FirmwareCliff(steps, celsius - 5.0, 2.0, power_off_celsius, 1.0)


# The middle of the ranges estimated for each kind of hardware.
_EDGE = replace(EDGE_MODULE, name="edge module", clock_exponent=CLOCK_EXPONENT)
_CARD72 = replace(SINGLE_CARD, name="72 W card", clock_exponent=CLOCK_EXPONENT)
_DUO = replace(DUO_CARD, name="150 W card, two chips", clock_exponent=CLOCK_EXPONENT)
_LOADS = {
    "edge": LoadModel(step_s=0.11, per_stream_s=0.004, per_prompt_token_s=0.0025),
    "edge-levels": LoadModel(step_s=0.11, per_stream_s=0.004, per_prompt_token_s=0.0025),
    "card72": LoadModel(),
    "duo": LoadModel(),
}
KINDS = ("edge", "edge-levels", "card72", "duo")


def nominal(kind: str) -> Plant:
    """The plant of a kind at the middle of its ranges. Raises ValueError for a kind that does not exist."""
    if kind not in KINDS:
        raise ValueError(f"no plant {kind!r}: expected one of {', '.join(KINDS)}")
    name, card, ambient = {
        "edge": ("310b", _EDGE, 40.0),
        "edge-levels": ("310b", _EDGE, 40.0),
        "card72": ("310p-pro", _CARD72, 35.0),
        "duo": ("310p-duo", _DUO, 35.0),
    }[kind]
    profile = load_profile(name)
    heat = profile.temperature
    return Plant(
        name=f"{kind}/nominal",
        kind=kind,
        profile=profile,
        card=card,
        ambient_celsius=ambient,
        cliff=cliff_at(heat.firmware_cliff_celsius, heat.critical_celsius + _POWER_OFF_ABOVE_CRITICAL),
        sensor=SensorModel(),
        load=_LOADS[kind],
        reports_clock=not kind.startswith("edge"),
        work_levels=WORK_LEVELS if kind == "edge-levels" else (),
    )


def draw(kind: str, index: int, seed: int) -> tuple[Plant, int]:
    """The ``index``-th plant of a kind, and how many draws were thrown away for it.

    Thrown away are plants that never reach the target in the hottest air, which leave a governor nothing to do, and
    those that no duty the profile allows holds there, of which only the firmware can take care.
    """
    rng = Random(f"{seed}/{kind}/{index}")
    middle = nominal(kind)
    rejected = 0
    while True:
        plant = _drawn(middle, index, rng)
        duty = sustainable_duty(plant, plant.ambient_celsius + HOTTER_CELSIUS, plant.profile.temperature.target_celsius)
        if plant.profile.levers.min_duty + _RESERVE_DUTY <= duty <= _BINDING_DUTY:
            return plant, rejected
        rejected += 1


def sustainable_duty(plant: Plant, ambient_celsius: float, celsius: float) -> float:
    """The duty of decoding at the rated clock, on all chips, whose steady junction temperature is ``celsius``. May be
    below 0 or above 1."""
    card = plant.card
    watts = (celsius - ambient_celsius) / (card.junction_resistance + card.chips * card.sink_resistance)
    electric = watts / (1 + card.leakage_per_celsius * max(0.0, celsius - card.leakage_from_celsius))
    return (electric - card.idle_watts) / ((card.max_watts - card.idle_watts) * DECODE_INTENSITY)


def _drawn(middle: Plant, index: int, rng: Random) -> Plant:
    def off(value: float) -> float:
        return value * rng.uniform(1 - SPREAD, 1 + SPREAD)

    card = middle.card
    idle = off(card.idle_watts)
    drawn = replace(
        card,
        idle_watts=idle,
        max_watts=idle + off(card.max_watts - card.idle_watts),
        junction_resistance=off(card.junction_resistance),
        junction_capacity=off(card.junction_capacity),
        sink_resistance=off(card.sink_resistance),
        sink_capacity=off(card.sink_capacity),
        leakage_per_celsius=rng.uniform(0.001, 0.003),
    )
    sensor = SensorModel(noise_celsius=rng.uniform(0.2, 0.6), delay_s=rng.choice((1, 2, 3)))
    return replace(
        middle,
        name=f"{middle.kind}/{index}",
        card=drawn,
        sensor=sensor,
        actuator_lag_s=rng.uniform(0.2, 1.5),
    )
