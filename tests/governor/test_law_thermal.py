"""The controller, the guard and the thresholds, one behaviour each."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from coldplate_governor.law import Inputs, LawState, decide
from coldplate_governor.law.guard import slope
from governor.law_play import CHIP, CPU, NPU, Steps, at, codes, hold, play, ramp

TARGET = NPU.temperature.target_celsius


def test_a_cool_device_has_no_limits() -> None:
    _, decisions, _ = play(NPU, hold(50.0, 60))
    assert all(not decision.limits and decision.mode == "NOMINAL" for decision in decisions)
    assert decisions[-1].binding == "none"


def test_being_cool_for_long_winds_nothing_up() -> None:
    state, _, _ = play(NPU, hold(40.0, 3600))
    _, decisions, _ = play(NPU, [*ramp(40.0, TARGET + 2), *hold(TARGET + 2, 10)], state, now_s=4600.0)
    assert decisions[-1].duty < 0.85


def test_an_operators_cap_winds_nothing_up_and_binds() -> None:
    state, decisions, now = play(NPU, hold(83.0, 600, other_duty=0.3))
    assert state.integral < 0.4
    assert decisions[-1].binding == "operator"
    _, released, _ = play(NPU, hold(83.0, 3), state, now)
    assert released[-1].duty < 0.6, "the budget grows back from the cap, it does not jump"


def test_above_target_the_duty_falls_and_the_reason_has_the_numbers() -> None:
    _, decisions, _ = play(NPU, [*ramp(80.0, 87.0), *hold(87.0, 5)])
    last = decisions[-1]
    assert last.mode == "THROTTLED"
    assert last.limits.duty == last.duty < 0.9
    assert last.binding == "thermal"
    assert last.rungs[0] == "duty"
    assert "TEMPERATURE_ABOVE_TARGET" in codes(last)
    assert "against a target of 85" in last.causes[0].text
    terms = last.terms
    assert terms.raw == pytest.approx(sum(part for part in (terms.p, terms.i, terms.d) if part is not None))
    assert terms.applied == last.duty


def test_low_duty_also_bounds_prefill() -> None:
    _, decisions, _ = play(NPU, [*ramp(80.0, 88.0, 0.3), *hold(88.0, 30)])
    last = decisions[-1]
    assert last.mode == "THROTTLED"
    assert last.duty < 0.5
    assert last.limits.max_prefill_tokens is not None
    assert NPU.levers.min_prefill_tokens <= last.limits.max_prefill_tokens < 2048
    assert last.rungs[:2] == ("duty", "prefill_budget")


def test_a_duty_falls_faster_than_it_rises() -> None:
    state, down, now = play(NPU, [*ramp(80.0, 84.0), *hold(84.0, 5), *hold(87.0, 4)])
    falls = [before.duty - after.duty for before, after in pairwise(down)]
    assert 0.031 < max(falls) <= 0.15 + 1e-3
    _, up, _ = play(NPU, [*ramp(87.0, 80.0, 2.0), *hold(80.0, 20)], state, now)
    rises = [after.duty - before.duty for before, after in pairwise(up)]
    assert 0 < max(rises) <= 0.03 + 1e-3


def test_near_critical_the_guard_acts_at_once_and_the_way_back_is_through_recovering() -> None:
    state, decisions, now = play(NPU, [*hold(80.0, 5), *hold(94.0, 2)])
    last = decisions[-1]
    assert (last.mode, last.limits.max_prefill_tokens, last.limits.admit) == ("CRITICAL", 0, False)
    assert last.duty == NPU.levers.critical_duty
    assert codes(last) & {"GUARD", "HEAT_RUNAWAY"}
    assert (last.retry_after_s or 0) >= 10
    state, still, now = play(NPU, [*ramp(94.0, 82.0), *hold(82.0, 100)], state, now)
    assert {decision.mode for decision in still} == {"CRITICAL"}, "5 °C below target is the way out"
    _, out, _ = play(NPU, hold(75.0, 300, running=1), state, now)
    modes = list(dict.fromkeys(decision.mode for decision in out))
    assert modes == ["CRITICAL", "RECOVERING", "NOMINAL"]
    assert [decision.mode for decision in out].index("RECOVERING") >= 15


@pytest.mark.parametrize("offset", [0.0, 0.2, 0.4, 0.6, 0.8])
@pytest.mark.parametrize("target", [82.0, 85.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_lost_heatsink_is_critical_three_seconds_after_it_shows(offset: float, target: float, seed: int) -> None:
    """1.8 °C/s from the target, with a sensor that is late, noisy and counts in whole degrees."""
    heat = replace(NPU.temperature, target_celsius=target, firmware_cliff_celsius=target + 4)
    profile = replace(NPU, temperature=heat)
    rng = random.Random(seed)
    calm = [target for _ in range(120)]
    rising = [target + 1.8 * (second + offset) for second in range(20)]
    readings = [float(round(value + rng.gauss(0, 0.4))) for value in calm + rising]
    _, decisions, _ = play(profile, [(1.0, at(value)) for value in readings])
    shows = next(s for s in range(120, 140) if readings[s] >= max(readings[60:120]) + 1)
    critical = next(s for s in range(120, 140) if decisions[s].mode == "CRITICAL")
    assert critical - shows <= 3


@pytest.mark.parametrize("hours", [2, pytest.param(24, marks=pytest.mark.slow)])
def test_a_day_of_noise_at_the_target_raises_at_most_one_alarm(hours: int) -> None:
    rng = random.Random(7)
    state, alarms, before = LawState(), 0, "NOMINAL"
    drift = 0.0
    for second in range(hours * 3600):
        drift = 0.98 * drift + rng.gauss(0, 0.08)
        reading = float(round(TARGET + drift + rng.gauss(0, 0.5)))
        state, decided = decide(NPU, state, {CHIP: at(reading, busy_share=0.6, running=8)}, float(second))
        alarms += decided[CHIP].mode == "CRITICAL" and before != "CRITICAL"
        before = decided[CHIP].mode
    assert alarms <= 1


def test_one_high_sample_does_not_fire_the_guard() -> None:
    _, decisions, _ = play(NPU, [*hold(70.0, 5), *hold(94.0, 1), *hold(70.0, 5)])
    assert all(decision.mode != "CRITICAL" for decision in decisions)


def test_a_slope_is_that_of_least_squares() -> None:
    assert slope(()) == 0
    assert slope(((1.0, 5.0),)) == 0
    assert slope(((1.0, 5.0), (1.0, 9.0))) == 0
    assert slope(((0.0, 1.0), (1.0, 3.0), (2.0, 5.0))) == pytest.approx(2.0)
    assert slope(((0.0, 0.0), (1.0, 0.0), (2.0, 3.0))) == pytest.approx(1.5)


def test_a_reading_that_never_moves_lets_the_budget_only_creep() -> None:
    state, _, now = play(NPU, [*ramp(80.0, 86.0), *hold(86.0, 20), *hold(85.0, 1)])
    _, after, _ = play(NPU, hold(84.0, 120), state, now)
    assert after[-1].duty - after[25].duty <= 0.06, "it may be a frozen sensor"
    moving: Steps = [(1.0, at(84.0 if second % 2 else 83.9)) for second in range(120)]
    _, free, _ = play(NPU, moving, state, now)
    assert free[-1].duty == 1 > after[-1].duty


def test_a_chip_above_its_target_at_start_is_taken_over_at_safe_limits() -> None:
    _, decisions, _ = play(NPU, [*hold(None, 1), *hold(88.0, 3)])
    taken = decisions[1]
    assert taken.mode == "SAFE"
    assert taken.limits.max_batch == NPU.safe_limits.max_batch
    assert NPU.safe_limits.duty is not None
    assert all(decision.duty <= NPU.safe_limits.duty for decision in decisions)
    assert "TAKEOVER" in codes(taken)


def test_a_firmware_limit_tightens_the_target_and_never_loosens_it() -> None:
    for told, target in ((86.0, 81.0), (100.0, 85.0)):
        _, decisions, _ = play(NPU, hold(70.0, 5, firmware_limit_celsius=told))
        assert decisions[-1].terms.target == target
        assert decisions[-1].causes == ()


@pytest.mark.parametrize("absurd", [-274.0, 0.0, 40.0, 69.0, 255.0])
def test_an_absurd_firmware_limit_is_dropped_with_a_warning(absurd: float) -> None:
    """E13: a trip point of -274 °C, or one below the present temperature, throttles nobody."""
    _, decisions, _ = play(NPU, hold(70.0, 5, firmware_limit_celsius=absurd))
    assert decisions[-1].terms.target == TARGET
    assert decisions[-1].duty == 1
    assert codes(decisions[-1]) == {"FIRMWARE_LIMIT_ABSURD"}
    assert f"{absurd:g}" in decisions[-1].causes[0].text


def test_a_reset_temperature_lowers_the_critical_one() -> None:
    limits = {"firmware_limit_celsius": 84.0, "reset_celsius": 95.0}
    _, decisions, _ = play(NPU, [*hold(75.0, 5, **limits), *hold(89.0, 3, **limits)])
    assert decisions[-1].mode == "CRITICAL"
    _, without, _ = play(NPU, [*hold(75.0, 5), *hold(80.0, 5), *hold(89.0, 1)])
    assert without[-1].mode != "CRITICAL"


def test_a_changed_profile_is_obeyed_at_once_and_leaves_nothing_behind() -> None:
    """E19: after new trips the old throttling does not stay, and a lower target holds from the next decision."""
    state, throttled, now = play(
        NPU, [*ramp(80.0, 86.0), *hold(86.0, 200, memory_used_bytes=95.0, memory_total_bytes=100.0)]
    )
    assert throttled[-1].duty < 0.5
    assert throttled[-1].limits.max_batch is not None
    heat = replace(NPU.temperature, target_celsius=95.0, firmware_cliff_celsius=100.0, critical_celsius=110.0)
    roomy = replace(NPU, temperature=heat)
    _, free, _ = play(roomy, hold(86.0, 60), state, now)
    assert free[0].limits.max_batch is None
    assert free[-1].duty == 1
    strict = replace(NPU, temperature=replace(NPU.temperature, target_celsius=70.0))
    cool, nominal, now = play(NPU, hold(75.0, 60))
    assert nominal[-1].duty == 1
    _, held, _ = play(strict, hold(75.0, 30), cool, now)
    assert held[-1].duty < 0.6


@pytest.mark.parametrize("profile", [NPU, CPU])
def test_after_any_fault_the_budget_is_back_in_bounded_time(profile: object) -> None:
    """E18: a minimum of service in every hardship that is no danger, and all of it five minutes after."""
    device = NPU if profile is NPU else CPU
    faults: list[Steps] = [
        [*ramp(70.0, 88.0), *hold(88.0, 120)],
        [*ramp(70.0, 97.0), *hold(97.0, 60)],
        hold(70.0, 100, age=30.0, alternative=False),
        hold(70.0, 300, memory_used_bytes=99.0, memory_total_bytes=100.0, running=16),
        hold(70.0, 100, frequency_mhz=200.0, rated_frequency_mhz=1000.0, utilization_percent=90.0),
        hold(70.0, 120, queue_wait_s=500.0),
        hold(70.0, 120, power_watts=90.0, power_limit_watts=20.0, busy_share=0.9),
    ]
    for fault in faults:
        state, decisions, now = play(device, [*hold(70.0, 10), *fault])
        assert all(decision.duty >= device.levers.critical_duty for decision in decisions)
        _, after, _ = play(device, [*ramp(90.0, 60.0, 3.0), *hold(60.0, 300, running=4, busy_share=0.5)], state, now)
        assert after[-1].duty == 1, fault[0]
        assert not after[-1].limits, fault[0]
        assert after[-1].mode == "NOMINAL", fault[0]


def test_inputs_default_to_unknown() -> None:
    state, decided = decide(CPU, LawState(), {"cpu": Inputs()}, 5.0)
    assert not decided["cpu"].limits
    assert state.devices[0].name == "cpu"
