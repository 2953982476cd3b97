"""All runs of the benchmark: our law on every plant and trace, the baselines on the steady and the square trace."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from coldplate_governor.bench.baselines import BASELINES, SCRIPT_CELSIUS, SCRIPT_CLOCK, Baseline
from coldplate_governor.bench.governed import Governed, Witness
from coldplate_governor.bench.oracle import Oracle
from coldplate_governor.bench.outcome import OURS, Outcome, judge
from coldplate_governor.explain.check import ReplayCheck
from coldplate_governor.twin import traces
from coldplate_governor.twin.plant import FirmwareCliff
from coldplate_governor.twin.plants import KINDS, Plant, draw, nominal, sustainable_duty
from coldplate_governor.twin.simulate import Run, simulate
from coldplate_governor.twin.traces import Trace

_BURST_LOAD = 0.9  # offered load of the bursty trace, as a share of what the plant can do at its target
_SLOW_SENSOR_S = 6
_NO_LAG_S = 1e-6
_REPLAYED = ("square", "sensor dead", "sensor jump", "contact lost")
_CURVE_BELOW_CLIFF = (15.0, 12.0, 9.0, 7.0, 5.0, 3.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run: plants drawn per kind beside the nominal one, kinds, and names of traces (all when empty)."""

    drawn: int = 2
    kinds: tuple[str, ...] = KINDS
    traces: tuple[str, ...] = ()
    baselines: tuple[str, ...] = tuple(BASELINES)
    curve: bool = True


QUICK = Scale(0, ("card72",), ("steady", "sensor jump", "contact lost"), ("firmware only",), False)


@dataclass(slots=True)
class CurvePoint:
    """Work at a limit: tokens per second, and the temperatures it really ran at."""

    kind: str
    controller: str
    limit_celsius: float | None
    mean_celsius: float
    p99_celsius: float
    tokens_per_s: float


@dataclass(slots=True)
class Results:
    """What the suite found. ``pictures`` keeps the whole run of each controller on the nominal plants."""

    seed: int
    rejected_plants: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    curve: list[CurvePoint] = field(default_factory=list)
    pictures: list[Run] = field(default_factory=list)
    ticks: int = 0
    identical: int = 0
    changes: int = 0
    complete: int = 0
    replay_problem: str | None = None


Progress = Callable[[float, str], None]  # share done, what is done now


def run_suite(seed: int, scale: Scale, progress: Progress, pictures: bool = False) -> Results:
    """Run everything; the same seed and scale give the same results."""
    results = Results(seed)
    plants: list[Plant] = []
    for kind in scale.kinds:
        plants.append(nominal(kind))
        for index in range(scale.drawn):
            plant, rejected = draw(kind, index, seed)
            plants.append(plant)
            results.rejected_plants += rejected
    jobs = [(plant, trace) for plant in plants for trace in plant_traces(plant, seed) if _wanted(trace, scale)]
    work = sum(_cost(plant, trace, scale) for plant, trace in jobs)
    done = 0.0
    for plant, trace in jobs:
        progress(done / work, f"{plant.name}: {trace.name}")
        _compare(plant, trace, seed, scale, results, pictures)
        done += _cost(plant, trace, scale)
    if scale.curve:
        for kind in scale.kinds:
            progress(1.0, f"{kind}: work at each limit")
            results.curve += curve(nominal(kind), seed)
    return results


def plant_traces(plant: Plant, seed: int) -> list[Trace]:
    """The traces a plant lives through; arrivals fit what it can do."""
    duty = sustainable_duty(plant, plant.ambient_celsius, plant.profile.temperature.target_celsius)
    per_s = _BURST_LOAD * min(1.0, duty) * plant.load.streams_per_s
    chosen = [traces.steady(), traces.square(), traces.bursty(seed, per_s), traces.bursty(seed, per_s, _SLOW_SENSOR_S)]
    chosen += [traces.released_cap(), *traces.lies(), traces.contact_lost()]
    return chosen + [traces.uneven()] * (plant.card.chips > 1)


def run_ours(plant: Plant, trace: Trace, seed: int, witness: Witness | None = None) -> Run:
    """Our law on one plant and trace."""
    return simulate(plant, trace, lambda p, card, engines: Governed(p.profile, p.card.chips, witness), OURS, seed)


def run_oracle(plant: Plant, trace: Trace, seed: int, limit: float) -> Run:
    """The oracle at ``limit`` degC. No actuator slows its hand and no firmware interferes, even at the cliff itself."""
    free = replace(plant, actuator_lag_s=_NO_LAG_S, cliff=FirmwareCliff(steps=(), power_off_celsius=math.inf))
    return simulate(free, trace, lambda p, card, engines: Oracle(p, card, engines, limit), "oracle", seed)


def run_baseline(plant: Plant, trace: Trace, seed: int, name: str) -> Run:
    """One of ``BASELINES``. The script gets the clock lever it was written for, on plants that have none, too."""
    policy = BASELINES[name]
    if name == "80 °C script":
        plant = replace(plant, work_levels=(1.0, SCRIPT_CLOCK))
    return simulate(plant, trace, lambda p, c, e: Baseline([policy(p) for _ in range(p.card.chips)]), name, seed)


def baseline_limit(plant: Plant, name: str) -> float:
    """The temperature a baseline is meant to hold: its oracle's limit."""
    if name == "firmware only":
        return plant.profile.temperature.firmware_cliff_celsius
    return SCRIPT_CELSIUS if name == "80 °C script" else plant.profile.temperature.target_celsius


def curve(plant: Plant, seed: int) -> list[CurvePoint]:
    """Tokens per second at each temperature limit, in the second half of an hour of full load: ours, the oracle's, and
    the firmware's at its cliff."""
    trace = Trace("steady hour", 3600)
    heat = plant.profile.temperature
    points = []
    for below in _CURVE_BELOW_CLIFF:
        limit = heat.firmware_cliff_celsius - below
        moved = replace(plant, profile=replace(plant.profile, temperature=replace(heat, target_celsius=limit)))
        points += [_point(run_ours(moved, trace, seed), limit), _point(run_oracle(moved, trace, seed, limit), limit)]
    return [*points, _point(run_baseline(plant, trace, seed, "firmware only"), None)]


def _point(run: Run, limit: float | None) -> CurvePoint:
    late = sorted(max(values) for values in zip(*(chip.celsius[1800:] for chip in run.chips), strict=True))
    tokens = sum(sum(chip.tokens[1800:]) for chip in run.chips) / len(late)
    return CurvePoint(run.plant.kind, run.controller, limit, sum(late) / len(late), late[int(len(late) * 0.99)], tokens)


def _compare(plant: Plant, trace: Trace, seed: int, scale: Scale, results: Results, pictures: bool) -> None:
    target = plant.profile.temperature.target_celsius
    oracle = run_oracle(plant, trace, seed, target)
    checked = plant.name.endswith("/nominal") and trace.name in _REPLAYED
    ours = _replayed(plant, trace, seed, results) if checked else run_ours(plant, trace, seed)
    runs = [(ours, oracle, target)]
    if trace.name in ("steady", "square"):
        for name in scale.baselines:
            limit = baseline_limit(plant, name)
            same = oracle if limit == target else run_oracle(plant, trace, seed, limit)
            runs.append((run_baseline(plant, trace, seed, name), same, limit))
    results.outcomes += [judge(*run) for run in runs]
    if pictures and plant.name.endswith("/nominal"):
        results.pictures += [run for run, _, _ in runs] + [oracle] * (trace.name == "steady")


def _replayed(plant: Plant, trace: Trace, seed: int, results: Results) -> Run:
    """Our law's run, each of its ticks written as the governor would record it, read back and decided again."""
    check = ReplayCheck(plant.profile)
    run = run_ours(plant, trace, seed, check.tick)
    found = check.report()
    results.ticks += found.ticks
    results.identical += found.identical
    results.changes += found.changes
    results.complete += found.complete
    results.replay_problem = results.replay_problem or found.problem
    return run


def _wanted(trace: Trace, scale: Scale) -> bool:
    return not scale.traces or trace.name in scale.traces


def _cost(plant: Plant, trace: Trace, scale: Scale) -> float:
    """Relative time of a job: our law costs several times a baseline."""
    others = len(scale.baselines) if trace.name in ("steady", "square") else 0
    return trace.seconds * plant.card.chips * (6 + others)


def names(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Controllers in the order in which they first come."""
    return iter(dict.fromkeys(outcome.controller for outcome in outcomes))
