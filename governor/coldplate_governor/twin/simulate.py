"""One plant lives through one trace under one controller, in virtual time.

Deterministic: the same plant, trace, controller and seed give the same run to the last bit. Two hours of one chip take
well under a second without the controller's own time.
"""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from coldplate_governor.twin.control import Command, Controller, Sight
from coldplate_governor.twin.load import PREFILL_BUDGET_TOKENS, Engine
from coldplate_governor.twin.plant import DECODE_INTENSITY, Card
from coldplate_governor.twin.plants import Plant
from coldplate_governor.twin.sensor import TemperatureSensor
from coldplate_governor.twin.traces import Trace

STEP_S = 0.25  # Euler step; the fastest junction drawn has a time constant of about 2 s
RATED_MHZ = 1080.0
_LOST_CONTACT_IDLE_CELSIUS = 15.0  # below the target: where an idle chip stays without its heatsink
_LEAST_LOST_CONTACT = 4.0
WARM_BELOW_TARGET = 10.0


def _series() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class ChipRun:
    """One chip, second by second: what was true at the end of each second and what was commanded for it.

    ``read_celsius`` is what the sensor said before it, NaN for nothing. ``gap_s`` is the time between two tokens of a
    stream, NaN while nothing ran.
    """

    celsius: "array[float]" = field(default_factory=_series)
    read_celsius: "array[float]" = field(default_factory=_series)
    duty: "array[float]" = field(default_factory=_series)
    clock: "array[float]" = field(default_factory=_series)
    tokens: "array[float]" = field(default_factory=_series)
    busy: "array[float]" = field(default_factory=_series)
    gap_s: "array[float]" = field(default_factory=_series)
    modes: list[str] = field(default_factory=list)
    firmware_events: int = 0
    refused: float = 0.0
    powered_off: bool = False


@dataclass(slots=True)
class Run:
    """What came of one simulation."""

    plant: Plant
    trace: Trace
    controller: str
    chips: list[ChipRun]
    watts: "array[float]" = field(default_factory=_series)

    @property
    def tokens(self) -> float:
        """Tokens of all chips over the whole run."""
        return sum(sum(chip.tokens) for chip in self.chips)

    @property
    def firmware_events(self) -> int:
        return sum(chip.firmware_events for chip in self.chips)


def simulate(
    plant: Plant,
    trace: Trace,
    make: Callable[[Plant, Card, list[Engine]], Controller],
    name: str,
    seed: int = 0,
) -> Run:
    """Run ``trace`` on ``plant``. ``make`` builds the controller; only an oracle looks at the card and the engines."""
    model = plant.card
    card = Card(model, plant.ambient_celsius, cliff=plant.cliff)
    if trace.warm:
        _warm(card, plant.profile.temperature.target_celsius - WARM_BELOW_TARGET)
    sensor_model = plant.sensor if trace.delay_s is None else replace(plant.sensor, delay_s=trace.delay_s)
    noise = Random(f"{seed}/{plant.name}/{trace.name}")
    sensors = [
        TemperatureSensor(sensor_model, noise, trace.fault if index == 0 else None) for index in range(model.chips)
    ]
    engines = [Engine(plant.load, math.inf if trace.arrivals is None else 0.0) for _ in range(model.chips)]
    controller = make(plant, card, engines)
    run = Run(plant, trace, name, [ChipRun() for _ in range(model.chips)])
    sights = [Sight() for _ in range(model.chips)]
    actuators = [1.0] * model.chips
    follow = 1 - math.exp(-1 / plant.actuator_lag_s)
    air = dict(trace.ambient_steps)
    for second in range(trace.seconds):
        if second in air:
            card.ambient_celsius = plant.ambient_celsius + air[second]
        if trace.contact is not None and second in trace.contact:
            lost = second == trace.contact[0]
            card.model = replace(model, junction_resistance=lost_contact_resistance(plant)) if lost else model
        cap = trace.cap[2] if trace.cap is not None and trace.cap[0] <= second < trace.cap[1] else None
        for sight, sensor, engine, chip in zip(sights, sensors, engines, card.chips, strict=True):
            _look(sight, float(second), sensor, engine, card, plant, chip.junction_celsius, chip.clock, cap)
        loads: list[float] = []
        commands = controller.tick(float(second), sights)
        for index, command in enumerate(commands):
            engine, chip = engines[index], card.chips[index]
            if trace.arrivals is not None:
                engine.arrive(trace.arrivals[second])
            duty = command.duty if cap is None or command.duty < cap else cap
            actuators[index] += follow * (duty - actuators[index])
            chip.work_level = _level(plant.work_levels, command.clock)
            loads.append(_live(engine, command, actuators[index], chip.clock, trace.demand(second, index)))
            if not chip.powered:
                engine.tokens, loads[-1] = 0.0, 0.0
        card.step(1.0, loads, STEP_S)
        run.watts.append(card.watts)
        _record(run, card, engines, sights, commands)
    for chip_run, chip, engine in zip(run.chips, card.chips, engines, strict=True):
        chip_run.firmware_events = chip.cliff_events
        chip_run.refused = engine.refused
        chip_run.powered_off = not chip.powered
    return run


def lost_contact_resistance(plant: Plant) -> float:
    """Junction to heatsink without contact, degC/W: what keeps an idle chip 15 degC below the target, and at least four
    times what it was. With less, nothing but switching off would help, and that is the firmware's to do."""
    card = plant.card
    sink = plant.ambient_celsius + card.chips * card.idle_watts * card.sink_resistance
    idle = (plant.profile.temperature.target_celsius - _LOST_CONTACT_IDLE_CELSIUS - sink) / card.idle_watts
    return max(idle, _LEAST_LOST_CONTACT * card.junction_resistance)


def lost_contact_rise(plant: Plant) -> float:
    """How fast, in degC/s, the junction begins to rise without contact at the power that held it at the target."""
    card, target = plant.card, plant.profile.temperature.target_celsius
    watts = (target - plant.ambient_celsius) / (card.junction_resistance + card.chips * card.sink_resistance)
    full = card.idle_watts + (card.max_watts - card.idle_watts) * DECODE_INTENSITY
    return min(watts, full) * (1 - card.junction_resistance / lost_contact_resistance(plant)) / card.junction_capacity


def _warm(card: Card, celsius: float) -> None:
    """Put the card where the power that keeps its junctions at ``celsius`` for ever has brought it."""
    model = card.model
    total = model.junction_resistance + model.chips * model.sink_resistance
    watts = max(0.0, celsius - card.ambient_celsius) / total
    card.heat(celsius)
    card.sink_celsius = celsius - watts * model.junction_resistance


def _look(
    sight: Sight,
    now_s: float,
    sensor: TemperatureSensor,
    engine: Engine,
    card: Card,
    plant: Plant,
    celsius: float,
    clock: float,
    cap: float | None,
) -> None:
    sight.at_s = now_s
    sight.temperature_celsius = sensor.read(now_s, celsius)
    sight.card_watts = card.watts
    sight.utilization_percent = 100 * engine.busy_share
    if plant.reports_clock:
        sight.frequency_mhz, sight.rated_frequency_mhz = RATED_MHZ * clock, RATED_MHZ
    sight.busy_share = engine.busy_share
    sight.running = round(engine.running)
    sight.waiting = 1000 if math.isinf(engine.waiting) else round(engine.waiting)
    sight.decode_tokens_per_s = engine.tokens
    sight.decode_steps_per_s = engine.steps
    sight.prefill_tokens_per_s = engine.prompt_tokens
    sight.operator_duty = cap
    sight.clock_shares = plant.work_levels


def _live(engine: Engine, command: Command, duty: float, clock: float, demand: float) -> float:
    prefill = command.prefill_tokens
    return engine.live(
        1.0,
        duty,
        clock,
        demand,
        PREFILL_BUDGET_TOKENS if prefill is None or prefill > PREFILL_BUDGET_TOKENS else prefill,
        1_000_000 if command.max_batch is None else command.max_batch,
        command.admit,
    )


def _level(levels: tuple[float, ...], wanted: float) -> float:
    """The work level nearest to the wanted clock, the slower of two equally near. Without levels it cannot be set."""
    return min(levels, key=lambda level: (abs(level - wanted), level)) if levels else 1.0


def _record(run: Run, card: Card, engines: list[Engine], sights: list[Sight], commands: Sequence[Command]) -> None:
    for index, out in enumerate(run.chips):
        chip, engine, sight, command = card.chips[index], engines[index], sights[index], commands[index]
        out.modes.append(command.mode)
        out.celsius.append(chip.junction_celsius)
        read = sight.temperature_celsius
        out.read_celsius.append(math.nan if read is None else read)
        out.duty.append(command.duty)
        out.clock.append(chip.clock)
        out.tokens.append(engine.tokens)
        out.busy.append(engine.busy_share)
        out.gap_s.append(engine.step_s / engine.busy_share if engine.busy_share > 0 else math.nan)
