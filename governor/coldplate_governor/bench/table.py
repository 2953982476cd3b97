"""The verdicts: rows of the table, each with what was demanded, what was found, and whether it passes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from coldplate_governor.bench.metrics import percentile
from coldplate_governor.bench.outcome import OURS, Outcome
from coldplate_governor.bench.suite import Results

Verdict = Literal["pass", "FAIL", "not run"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line. ``found`` is in words, ``worst`` says on which plant and trace it was."""

    number: str
    what: str
    demanded: str
    found: str
    worst: str
    verdict: Verdict


def verdicts(results: Results) -> list[Row]:
    """The rows for our law."""
    ours = [outcome for outcome in results.outcomes if outcome.controller == OURS]
    healthy = [o for o in ours if o.healthy and "delay" not in o.trace]
    late = [o for o in ours if "delay" in o.trace]
    steady = [o for o in ours if o.trace == "steady"]
    square = [o for o in ours if o.trace == "square"]
    faults = [o for o in ours if o.excess is not None]
    contact = [o for o in ours if o.alarm_s is not None]
    return [
        _p95(healthy),
        _margin(healthy),
        _most("1", "overshoot, bursts and a 6 s late sensor", "≤ 3 °C", late, lambda o: o.overshoot, 3.0, "{:.1f} °C"),
        _most(
            "2", "time above target + 1, steady load", "≤ 1 %", steady, lambda o: 100 * o.share_above, 1.0, "{:.2f} %"
        ),
        _most(
            "2", "time above target + 1, square wave", "≤ 3 %", square, lambda o: 100 * o.share_above, 3.0, "{:.2f} %"
        ),
        _most(
            "3", "settling after air +12 °C, to ± 1 °C", "≤ 120 s", steady, lambda o: o.settling_s, 120.0, "{:.0f} s"
        ),
        _mean_work(healthy),
        _plant_work(healthy),
        _most("5", "firmware events, all well", "0", healthy + late, lambda o: o.firmware_events, 0.0, "{:.0f}"),
        _most(
            "6", "turns of > 10 % of the range, steady", "≤ 4 /h", steady, lambda o: o.reversals_per_h, 4.0, "{:.1f} /h"
        ),
        _most("7", "mode flaps, steady load", "0", steady, lambda o: o.flaps_per_h, 0.0, "{:.1f} /h"),
        _most("7", "mode flaps, any load", "≤ 1 /h", healthy + late, lambda o: o.flaps_per_h, 1.0, "{:.1f} /h"),
        _most(
            "8",
            "sensor lies or dies for 120 s: hotter than ever before by",
            "≤ 1 °C",
            faults,
            lambda o: o.excess,
            1.0,
            "{:.1f} °C",
        ),
        _most(
            "9",
            "heatsink comes off, ≥ 1 °C/s: critical after the first sample that shows it",
            "≤ 3 s",
            contact,
            lambda o: o.alarm_s,
            3.0,
            "{:.0f} s",
        ),
        _most(
            "9",
            "heatsink comes off: peak above the critical temperature",
            "≤ 3 °C",
            contact,
            lambda o: o.above_critical,
            3.0,
            "{:+.1f} °C",
        ),
        _false_alarms(healthy + late),
        _most(
            "16",
            "p99 gap between tokens, to the gap at the mean pace",
            "≤ 1.3",
            steady,
            lambda o: o.gap_ratio,
            1.3,
            "{:.2f}",
        ),
        _share("20", "decisions that replay bit for bit", results.identical, results.ticks, results.replay_problem),
        _share("20", "changes with a complete record", results.complete, results.changes, results.replay_problem),
    ]


def failed(rows: Sequence[Row]) -> bool:
    return any(row.verdict == "FAIL" for row in rows)


def _most(
    number: str,
    what: str,
    demanded: str,
    outcomes: Sequence[Outcome],
    figure: Callable[[Outcome], float | None],
    bound: float,
    shown: str,
) -> Row:
    """The largest figure may be ``bound``. Runs without one do not count."""
    found = [(value, o) for o in outcomes if (value := figure(o)) is not None]
    if not found:
        return Row(number, what, demanded, "", "", "not run")
    value, worst = max(found, key=lambda pair: pair[0])
    text = "never" if math.isinf(value) else shown.format(value)
    return Row(number, what, demanded, text, _where(worst), "pass" if value <= bound else "FAIL")


def _p95(outcomes: Sequence[Outcome]) -> Row:
    what, demanded = "overshoot above target, p95 of runs", "≤ 2.5 °C"
    if not outcomes:
        return Row("1", what, demanded, "", "", "not run")
    value = percentile(sorted(o.overshoot for o in outcomes), 95)
    return Row("1", what, demanded, f"{value:.1f} °C", f"{len(outcomes)} runs", "pass" if value <= 2.5 else "FAIL")


def _margin(outcomes: Sequence[Outcome]) -> Row:
    what, demanded = "overshoot above target, worst run", "≤ min(4, cliff − target − 1) °C"
    if not outcomes:
        return Row("1", what, demanded, "", "", "not run")
    worst = min(outcomes, key=lambda o: o.overshoot_bound - o.overshoot)
    found = f"{worst.overshoot:.1f} of {worst.overshoot_bound:g} °C"
    return Row(
        "1", what, demanded, found, _where(worst), "pass" if worst.overshoot <= worst.overshoot_bound else "FAIL"
    )


def _mean_work(outcomes: Sequence[Outcome]) -> Row:
    what, demanded = "work against the oracle at the same limit, mean", "≥ 0.98"
    if not outcomes:
        return Row("4", what, demanded, "", "", "not run")
    value = sum(o.work for o in outcomes) / len(outcomes)
    return Row("4", what, demanded, f"{value:.3f}", f"{len(outcomes)} runs", "pass" if value >= 0.98 else "FAIL")


def _plant_work(outcomes: Sequence[Outcome]) -> Row:
    what, demanded = "work against the oracle at the same limit, worst plant", "≥ 0.95"
    if not outcomes:
        return Row("4", what, demanded, "", "", "not run")
    by_plant: dict[str, list[float]] = {}
    for outcome in outcomes:
        by_plant.setdefault(outcome.plant, []).append(outcome.work)
    plant, values = min(by_plant.items(), key=lambda item: sum(item[1]) / len(item[1]))
    value, worst = sum(values) / len(values), min(outcomes, key=lambda o: o.work)
    where = f"{plant}; worst single run {worst.work:.3f}, {_where(worst)}"
    return Row("4", what, demanded, f"{value:.3f}", where, "pass" if value >= 0.95 else "FAIL")


def _false_alarms(outcomes: Sequence[Outcome]) -> Row:
    what, demanded = "false alarms (critical with all well)", "≤ 1 in 24 h"
    hours = sum(o.hours for o in outcomes)
    if not hours:
        return Row("9", what, demanded, "", "", "not run")
    count = sum(o.false_alarms for o in outcomes)
    return Row("9", what, demanded, f"{count} in {hours:.0f} h", "", "pass" if count <= hours / 24 else "FAIL")


def _share(number: str, what: str, part: int, whole: int, problem: str | None) -> Row:
    if not whole:
        return Row(number, what, "100 %", "", "", "not run")
    verdict: Verdict = "pass" if part == whole else "FAIL"
    return Row(number, what, "100 %", f"{100 * part / whole:.2f} %", problem or f"{whole} of them", verdict)


def _where(outcome: Outcome) -> str:
    return f"{outcome.plant}, {outcome.trace}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One controller over all plants on one trace; temperatures in degC, means over plants unless named worst."""

    controller: str
    trace: str
    limit: str
    peak_celsius: float
    mean_celsius: float
    tokens_per_s: float
    work: float
    worst_work: float
    overshoot: float
    firmware_events_per_h: float
    reversals_per_h: float


def comparisons(results: Results) -> list[Comparison]:
    """Everybody on the same traces. ``work`` is against the oracle at the controller's own limit."""
    found: list[Comparison] = []
    for trace in ("steady", "square"):
        runs = [o for o in results.outcomes if o.trace == trace]
        for controller in dict.fromkeys(o.controller for o in runs):
            mine = [o for o in runs if o.controller == controller]
            count, hours = len(mine), sum(o.hours for o in mine)
            limits = sorted({o.limit_celsius for o in mine})
            found.append(
                Comparison(
                    controller=controller,
                    trace=trace,
                    limit=" / ".join(f"{limit:g}" for limit in limits),
                    peak_celsius=max(o.peak_celsius for o in mine),
                    mean_celsius=sum(o.mean_celsius for o in mine) / count,
                    tokens_per_s=sum(o.tokens_per_s for o in mine) / count,
                    work=sum(o.work for o in mine) / count,
                    worst_work=min(o.work for o in mine),
                    overshoot=max(o.peak_celsius - o.limit_celsius for o in mine),
                    firmware_events_per_h=sum(o.firmware_events for o in mine) / hours,
                    reversals_per_h=sum(o.reversals_per_h for o in mine) / count,
                )
            )
    return found
