"""Each figure of the benchmark on runs made by hand."""

import math
from array import array
from dataclasses import replace

import pytest

from coldplate_governor.bench import metrics
from coldplate_governor.bench.baselines import BangBang, NoAntiWindup, PowerAllocator, Script, StepWise
from coldplate_governor.bench.outcome import OURS, judge
from coldplate_governor.bench.suite import Results
from coldplate_governor.bench.table import comparisons, failed, verdicts
from coldplate_governor.twin import traces
from coldplate_governor.twin.control import Command
from coldplate_governor.twin.plants import nominal
from coldplate_governor.twin.simulate import ChipRun, Run
from coldplate_governor.twin.traces import Trace

PLANT = nominal("card72")
TARGET = PLANT.profile.temperature.target_celsius
CLIFF = PLANT.profile.temperature.firmware_cliff_celsius


def a_run(
    celsius: list[float],
    duty: list[float] | None = None,
    trace: Trace | None = None,
    modes: list[str] | None = None,
    tokens: float = 10.0,
) -> Run:
    count = len(celsius)
    chip = ChipRun(
        celsius=array("d", celsius),
        read_celsius=array("d", celsius),
        duty=array("d", duty or [0.5] * count),
        clock=array("d", [1.0] * count),
        tokens=array("d", [tokens] * count),
        busy=array("d", duty or [0.5] * count),
        gap_s=array("d", [0.1 / value for value in (duty or [0.5] * count)]),
        modes=modes or ["THROTTLED"] * count,
    )
    trace = replace(trace or traces.square(), seconds=count)
    return Run(PLANT, trace, OURS, [chip])


def test_overshoot_is_the_highest_above_the_limit() -> None:
    assert metrics.overshoot(a_run([80, 87.5, 84]), 85.0) == 2.5
    assert metrics.overshoot(a_run([80, 84]), 85.0) == 0.0


def test_time_above_counts_from_a_minute_after_the_limit_is_reached() -> None:
    run = a_run([60.0] * 100 + [85.5] * 1 + [88.0] * 60 + [85.0] * 90 + [86.5] * 10)
    assert metrics.share_above(run, 86.0) == pytest.approx(11 / 101)
    assert metrics.share_above(a_run([60.0] * 500), 86.0) == 0.0


@pytest.mark.parametrize(
    ("duty", "turns"),
    [
        ([1.0, 0.5, 0.5, 0.5], 0),
        ([1.0, 0.5, 0.7, 0.5], 2),
        ([0.5, 0.55, 0.5, 0.55], 0),
        ([0.5, 0.6, 0.75, 0.7, 0.68, 0.6, 0.7, 0.9], 2),
    ],
)
def test_a_turn_is_a_change_of_direction_by_more_than_a_tenth(duty: list[float], turns: int) -> None:
    run = a_run([80.0] * len(duty), duty)
    assert metrics.reversals_per_h(run) == pytest.approx(turns * 3600 / len(duty))


def test_a_flap_is_a_return_within_a_minute() -> None:
    modes = ["NOMINAL"] * 10 + ["THROTTLED"] * 30 + ["NOMINAL"] * 100 + ["THROTTLED"] * 70
    run = a_run([80.0] * len(modes), modes=modes)
    assert metrics.mode_flaps_per_h(run) == pytest.approx(3600 / len(modes)), "only the first return is a quick one"


def test_the_excess_after_a_fault_is_above_all_that_was_before() -> None:
    trace = traces.lying("zeros")
    before, at = [84.0, 86.0] * 450, 900
    assert metrics.excess_after_fault(a_run([*before, *[85.0] * 50, 88.5, *[85.0] * 369], trace=trace)) == 2.5
    assert trace.fault is not None
    assert trace.fault.from_s == at


def test_the_alarm_counts_from_the_first_sample_that_shows_the_loss() -> None:
    trace = traces.contact_lost()
    assert trace.contact is not None
    lost, back = trace.contact
    celsius = [85.0] * (lost + 3) + [86.0, 87.5, 90.0, 93.0] + [95.0] * (back - lost)
    modes = ["THROTTLED"] * (lost + 6) + ["CRITICAL"] * (len(celsius) - lost - 6)
    assert metrics.contact_alarm_s(a_run(celsius, trace=trace, modes=modes)) == 2.0
    assert math.isinf(metrics.contact_alarm_s(a_run(celsius, trace=trace)))


def test_settling_is_from_hotter_air_until_a_calm_minute() -> None:
    count = traces.AMBIENT_DOWN_S
    celsius = [TARGET] * count
    for second in range(traces.AMBIENT_UP_S, traces.AMBIENT_UP_S + 80):
        celsius[second] = TARGET + 1.5
    oracle = a_run([TARGET] * count, [0.6] * count, traces.steady())
    assert metrics.settling_s(a_run(celsius, trace=traces.steady()), TARGET, oracle) == 80.0
    never_limited = a_run([60.0] * count, [1.0] * count, traces.steady())
    assert metrics.settling_s(a_run(celsius, trace=traces.steady()), TARGET, never_limited) is None


def test_critical_modes_are_counted_when_they_are_entered() -> None:
    modes = ["CRITICAL"] * 2 + ["THROTTLED"] + ["CRITICAL", "FALLBACK"] + ["THROTTLED"]
    assert metrics.critical_entries(a_run([80.0] * 6, modes=modes)) == 2


def test_an_even_pace_has_a_gap_ratio_of_one_and_a_jerky_one_has_not() -> None:
    even, jerky = a_run([80.0] * 600, [0.5] * 600), a_run([80.0] * 600, [0.25, 0.75] * 300)
    assert metrics.gap_ratio(even, [(0, 600)]) == pytest.approx(1.0)
    assert metrics.gap_ratio(jerky, [(0, 600)]) == pytest.approx(2.0)


def test_a_figure_that_falls_short_fails_its_row() -> None:
    oracle = a_run([TARGET] * 400, tokens=10.0)
    good, hot = a_run([TARGET + 0.5] * 400, tokens=9.9), a_run([CLIFF + 1] * 400, tokens=9.0)
    fine = Results(0, outcomes=[judge(good, oracle, TARGET)], ticks=5, identical=5, changes=1, complete=1)
    assert not failed(verdicts(fine))
    short = Results(0, outcomes=[judge(hot, oracle, TARGET)], ticks=5, identical=4, changes=1, complete=1)
    missed = {(row.number, row.demanded) for row in verdicts(short) if row.verdict == "FAIL"}
    assert {("1", "≤ 2.5 °C"), ("1", "≤ min(4, cliff − target − 1) °C"), ("4", "≥ 0.98"), ("4", "≥ 0.95")} <= missed
    assert ("20", "100 %") in missed
    assert [line.controller for line in comparisons(short)] == [OURS]


def test_a_row_that_was_not_run_is_not_a_pass() -> None:
    rows = verdicts(Results(0))
    assert {row.verdict for row in rows} == {"not run"}


def drive(policy: object, temperatures: list[float]) -> list[float]:
    command, out = Command(), []
    for second, celsius in enumerate(temperatures):
        policy.act(second, celsius, command)  # type: ignore[attr-defined]
        out.append(command.duty * command.clock)
    return out


def test_the_script_looks_every_five_seconds_and_knows_two_clocks() -> None:
    assert drive(Script(), [79, 95, 95, 95, 95, 81, 70]) == [1.0] * 5 + [600 / 1224] * 2


def test_bang_bang_has_a_band_of_three_degrees() -> None:
    low = PLANT.profile.levers.min_duty
    assert drive(BangBang(PLANT.profile), [84, 85, 83, 82, 84]) == [1.0, low, low, 1.0, 1.0]


def test_step_wise_goes_one_state_at_a_time() -> None:
    duties = drive(StepWise(PLANT.profile, poll_s=1), [84, 85, 86, 86, 85, 84, 83, 84])
    step = (1 - PLANT.profile.levers.min_duty) / 7
    assert duties == pytest.approx([1.0, 1 - step, 1 - 2 * step, 1 - 2 * step, 1 - 2 * step, 1 - step, 1.0, 1.0])


def test_the_power_allocator_grants_everything_below_its_switch_on_trip_and_little_above_its_target() -> None:
    duties = drive(PowerAllocator(PLANT), [60.0, 71.0, 85.0, 92.0, 92.0, 60.0])
    assert duties[0] == duties[5] == 1.0
    assert duties[2] == pytest.approx((50 / 0.8 - 18) / 54), "the sustainable power at the target"
    assert PLANT.profile.levers.min_duty <= duties[4] <= duties[3] < duties[2]
    assert drive(PowerAllocator(PLANT, 0.6), [85.0])[0] < duties[2] < drive(PowerAllocator(PLANT, 1.4), [85.0])[0]


def test_the_integral_that_nothing_bounds_keeps_a_hot_chip_at_full_duty() -> None:
    duties = drive(NoAntiWindup(PLANT.profile), [40.0] * 300 + [90.0] * 60)
    assert duties[-1] == 1.0, "that is what it is here to show"
