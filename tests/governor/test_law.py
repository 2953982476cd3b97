"""Properties and examples of the law."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate.profile import DeviceProfile, load_profile
from coldplate_governor.law import Decision, Inputs, LawState, decide

NPU, CPU = load_profile("310p-duo"), load_profile("cpu")
PROFILES = st.sampled_from([NPU, CPU])

wild = st.none() | st.floats()  # NaN and infinities too
sane_celsius = st.floats(1, 125)
any_inputs = st.builds(
    Inputs,
    temperature_celsius=wild | sane_celsius,
    temperature_age_s=wild | st.floats(0, 60),
    memory_used_bytes=wild | st.floats(0, 1e11),
    memory_total_bytes=wild | st.floats(0, 1e11),
    memory_pressure_percent=wild | st.floats(0, 100),
    utilization_percent=wild | st.floats(0, 100),
    frequency_mhz=wild | st.floats(0, 2000),
    rated_frequency_mhz=wild | st.floats(0, 2000),
    running=st.none() | st.integers(0, 10_000),
    other_duty=wild | st.floats(0, 1),
)
sequences = st.lists(st.tuples(st.floats(0, 30), any_inputs), max_size=30)


Steps = list[tuple[float, Inputs]]


def play(profile: DeviceProfile, steps: Steps, state: LawState | None = None) -> tuple[LawState, list[Decision], float]:
    state, now, decisions = state or LawState(), 1000.0, []
    for dt, inputs in steps:
        now += dt
        state, decision = decide(profile, state, inputs, now)
        decisions.append(decision)
    return state, decisions, now


def hold(celsius: float | None, seconds: int, age: float = 0.0, **more: float) -> list[tuple[float, Inputs]]:
    age_s = None if celsius is None else age
    return [(1.0, Inputs(temperature_celsius=celsius, temperature_age_s=age_s, **more)) for _ in range(seconds)]  # type: ignore[arg-type]


def codes(decision: Decision) -> set[str]:
    return {cause.code for cause in decision.causes}


@given(PROFILES, sequences)
@settings(deadline=None)
def test_every_output_is_in_bounds(profile: DeviceProfile, steps: Steps) -> None:
    _, decisions, _ = play(profile, steps)
    for decision in decisions:  # Limits itself refuses what is out of range
        assert math.isfinite(decision.duty)
        assert profile.levers.min_duty <= decision.duty <= 1
        assert decision.limits.duty is None or decision.limits.duty >= profile.levers.min_duty
        assert decision.mode in ("NOMINAL", "THROTTLED", "CRITICAL")
        assert decision.mode == "NOMINAL" or decision.causes or decision.duty >= 0.95
        if decision.limits.max_batch is not None:
            assert 1 <= decision.limits.max_batch <= profile.levers.max_batch
        for cause in decision.causes:
            assert cause.code.isupper()
            assert cause.text


@given(PROFILES, sequences, sane_celsius, sane_celsius, st.floats(0.1, 10), st.floats(0, 30))
@settings(max_examples=200, deadline=None)
def test_a_hotter_device_is_never_granted_more(
    profile: DeviceProfile, steps: Steps, one: float, other: float, dt: float, age: float
) -> None:
    state, _, now = play(profile, steps)
    cooler, hotter = (decide(profile, state, Inputs(t, age), now + dt)[1] for t in sorted((one, other)))
    assert hotter.duty <= cooler.duty
    unlimited = profile.levers.max_prefill_tokens
    budgets = [decision.limits.max_prefill_tokens for decision in (cooler, hotter)]
    allowed, less = (unlimited if budget is None else budget for budget in budgets)
    assert less <= allowed


@given(PROFILES, sequences)
@settings(deadline=None)
def test_the_same_inputs_give_the_same_decisions(profile: DeviceProfile, steps: Steps) -> None:
    assert play(profile, steps)[1] == play(profile, steps)[1]


def test_no_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise AssertionError("the law read a clock")

    for name in ("time", "time_ns", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, refuse)
    play(NPU, hold(88.0, 5))


def test_a_cool_device_has_no_limits() -> None:
    _, decisions, _ = play(NPU, hold(50.0, 60))
    assert all(not decision.limits and decision.mode == "NOMINAL" for decision in decisions)


def test_being_cool_for_long_winds_nothing_up() -> None:
    state, _, _ = play(NPU, hold(40.0, 3600))
    _, decisions, _ = play(NPU, hold(88.0, 10), state)
    assert decisions[-1].duty < 0.85


def test_an_operators_cap_winds_nothing_up() -> None:
    state, _, _ = play(NPU, hold(83.0, 600, other_duty=0.3))
    assert state.integral < 0.6


def test_above_target_duty_and_prefill_fall_and_the_reason_has_the_numbers() -> None:
    _, decisions, _ = play(NPU, hold(88.0, 10))
    last = decisions[-1]
    assert last.mode == "THROTTLED"
    assert last.limits.duty == last.duty < 0.9
    assert last.limits.max_prefill_tokens is not None
    assert last.limits.max_prefill_tokens < 2048
    assert "TEMPERATURE_ABOVE_TARGET" in codes(last)
    assert "88.0 °C against a target of 85" in last.causes[0].text


def test_a_duty_falls_faster_than_it_rises() -> None:
    state, down, _ = play(NPU, hold(89.0, 4))
    _, up, _ = play(NPU, hold(60.0, 4), state)
    assert down[0].duty - down[1].duty <= 0.15 + 1e-9
    assert 0 < up[-1].duty - up[-2].duty <= 0.03 + 1e-3


def test_near_critical_the_guard_acts_at_once() -> None:
    state, decisions, _ = play(NPU, hold(94.0, 2))
    assert decisions[-1].mode == "CRITICAL"
    assert decisions[-1].limits.max_prefill_tokens == 0
    assert decisions[-1].limits.duty == NPU.levers.min_duty
    assert "GUARD" in codes(decisions[-1])
    _, still, _ = play(NPU, hold(82.0, 60), state)
    assert all(decision.mode == "CRITICAL" for decision in still), "5 °C below target is the way out"
    _, out, _ = play(NPU, hold(75.0, 90), state)
    assert [d.mode for d in (out[10], out[17], out[-1])] == ["CRITICAL", "THROTTLED", "NOMINAL"]


def test_a_fast_rise_fires_the_guard_before_the_critical_temperature() -> None:
    rising = [(1.0, Inputs(temperature_celsius=85.0 + 2.5 * second, temperature_age_s=0.0)) for second in range(4)]
    _, decisions, _ = play(NPU, rising)
    assert decisions[-1].mode == "CRITICAL"


def test_one_high_sample_does_not_fire_the_guard() -> None:
    _, decisions, _ = play(NPU, [*hold(70.0, 5), *hold(94.0, 1), *hold(70.0, 5)])
    assert all(decision.mode != "CRITICAL" for decision in decisions)


def test_a_lost_temperature_is_held_then_halved_then_feared() -> None:
    state, _, _ = play(NPU, hold(70.0, 5))
    _, (held,), _ = play(NPU, hold(70.0, 1, age=3.0), state)
    _, (halved,), _ = play(NPU, hold(70.0, 1, age=8.0), state)
    _, (feared,), _ = play(NPU, hold(70.0, 1, age=20.0), state)
    assert (held.duty, halved.duty, feared.duty) == (1.0, 0.5, NPU.levers.min_duty)
    assert feared.mode == "CRITICAL"
    assert codes(feared) == codes(halved) == {"TEMPERATURE_LOST"}


def test_an_npu_without_a_temperature_has_its_safe_limits_and_a_cpu_no_claim() -> None:
    _, (npu,), _ = play(NPU, hold(None, 1))
    _, (cpu,), _ = play(CPU, hold(None, 1))
    assert npu.limits == NPU.safe_limits
    assert codes(npu) == {"TEMPERATURE_ABSENT"}
    assert cpu.limits.duty is None
    assert (cpu.mode, cpu.causes) == ("NOMINAL", ())


def test_short_memory_caps_the_batch_and_gives_it_back() -> None:
    short = [(1.0, Inputs(memory_used_bytes=95.0, memory_total_bytes=100.0, running=16)) for _ in range(12)]
    state, tight, now = play(CPU, short)
    assert [tight[0].limits.max_batch, tight[-1].limits.max_batch] == [12, 6]
    assert codes(tight[-1]) == {"MEMORY_SHORT"}
    assert "95% used" in tight[-1].causes[0].text
    between = decide(CPU, state, Inputs(memory_used_bytes=88.0, memory_total_bytes=100.0), now + 60)[1]
    assert between.limits.max_batch == 6, "in the band nothing moves"
    room = [(1.0, Inputs(memory_used_bytes=50.0, memory_total_bytes=100.0)) for _ in range(120)]
    assert play(CPU, [(60.0, room[0][1]), *room], state)[1][-1].limits.max_batch is None


def test_memory_stalls_alone_cap_the_batch() -> None:
    _, decisions, _ = play(CPU, [(1.0, Inputs(memory_pressure_percent=40.0, running=8))])
    assert decisions[0].limits.max_batch == 6


def test_firmware_throttling_is_told_and_stops_growth() -> None:
    slow = {"frequency_mhz": 540.0, "rated_frequency_mhz": 1080.0, "utilization_percent": 90.0}
    state = LawState(mode="THROTTLED", duty=0.6, integral=0.6, recent=(84.0,), filtered=84.0)
    after, decisions, _ = play(NPU, hold(84.0, 10, **slow), state)
    assert "FIRMWARE_THROTTLES" in codes(decisions[0])
    assert after.integral <= state.integral
    idle, decisions, _ = play(NPU, hold(84.0, 10, **(slow | {"utilization_percent": 0.0})), state)
    assert idle.integral > after.integral, "an idle chip may well run slow"
    assert "FIRMWARE_THROTTLES" not in codes(decisions[0])
