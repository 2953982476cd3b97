"""Sensor trust by age and by what a chip can do."""

import pytest

from coldplate_governor.law.state import TrustState
from coldplate_governor.law.trust import judge
from governor.law_play import CPU, NPU, at, codes, hold, play


def test_a_lost_temperature_is_held_then_halved_then_feared_then_given_up() -> None:
    state, _, now = play(NPU, hold(70.0, 5))
    decisions = []
    for second in range(1, 70):
        state, (decision,), now = play(NPU, [(1.0, at(70.0, float(second)))], state, now)
        decisions.append(decision)
    duty = {second: decisions[second - 1].duty for second in (4, 6, 14, 16, 58)}
    assert duty == {4: 1.0, 6: 0.5, 14: 0.5, 16: 0.25, 58: 0.25}
    assert (decisions[15].mode, decisions[15].binding) == ("CRITICAL", "sensor")
    assert decisions[60].mode == "FALLBACK"
    assert codes(decisions[15]) >= {"TEMPERATURE_LOST"}
    assert codes(decisions[5]) == {"TEMPERATURE_LOST"}


def test_samples_that_stop_coming_age_by_themselves() -> None:
    state, _, now = play(NPU, hold(70.0, 5))
    _, decisions, _ = play(NPU, hold(None, 20), state, now)
    assert [decisions[second].duty for second in (3, 6, 17)] == [1.0, 0.5, 0.25]


def test_while_a_temperature_is_held_the_budget_does_not_rise() -> None:
    state, _, now = play(NPU, [*hold(87.0, 30), *hold(80.0, 2)])
    state, (before,), now = play(NPU, hold(80.0, 1, age=4.0), state, now)
    _, (after,), _ = play(NPU, hold(80.0, 1, age=4.5), state, now)
    assert after.duty <= before.duty < 1


def test_where_nothing_else_can_serve_a_blind_chip_goes_on_at_safe_limits() -> None:
    """E18: a tool that hangs for ever must not close the only device there is."""
    state, _, now = play(NPU, hold(70.0, 5))
    _, decisions, _ = play(NPU, hold(None, 120, alternative=False), state, now)
    last = decisions[-1]
    assert last.mode == "SAFE"
    assert last.limits.admit is None
    assert last.limits.max_prefill_tokens == NPU.safe_limits.max_prefill_tokens
    assert last.duty == NPU.levers.min_duty


def test_a_cpu_that_lost_its_temperature_goes_on_at_safe_limits() -> None:
    state, _, now = play(CPU, hold(70.0, 5))
    _, decisions, _ = play(CPU, hold(None, 120), state, now)
    assert {decision.mode for decision in decisions} == {"NOMINAL", "THROTTLED", "SAFE"}
    assert decisions[-1].limits.max_prefill_tokens == CPU.safe_limits.max_prefill_tokens


def test_an_npu_never_seen_with_a_temperature_has_its_safe_limits_and_a_cpu_no_claim() -> None:
    _, npu, _ = play(NPU, hold(None, 100))
    _, cpu, _ = play(CPU, hold(None, 100))
    assert npu[-1].limits == NPU.safe_limits
    assert (npu[-1].mode, codes(npu[-1])) == ("SAFE", {"TEMPERATURE_ABSENT"})
    assert not cpu[-1].limits
    assert (cpu[-1].mode, cpu[-1].causes) == ("NOMINAL", ())


def test_a_temperature_that_comes_late_ends_the_safe_limits_gently() -> None:
    state, _, now = play(NPU, hold(None, 20))
    _, decisions, _ = play(NPU, hold(60.0, 80), state, now)
    assert decisions[0].duty <= 0.53
    assert (decisions[-1].mode, decisions[-1].duty) == ("NOMINAL", 1.0)


def test_a_fall_no_chip_could_make_is_followed_slowly_and_counts_as_lost() -> None:
    state, before, now = play(NPU, [*hold(80.0, 5), *hold(86.0, 60)])
    state, lying, now = play(NPU, hold(71.0, 30), state, now)
    assert "TEMPERATURE_DOUBTED" in codes(lying[1])
    assert all(decision.duty <= before[-1].duty + 1e-9 for decision in lying)
    assert lying[10].duty <= 0.5
    assert lying[20].mode == "CRITICAL"
    _, believed, _ = play(NPU, hold(71.0, 200, running=1), state, now)
    assert believed[-1].terms.filtered == pytest.approx(71.0, abs=0.1), "after all it is believed"


def test_a_rise_is_believed_at_once() -> None:
    state, trust = judge(TrustState(50.0, 10.0), at(90.0), 11.0)
    assert (trust.celsius, trust.level, state.doubted_since_s) == (90.0, "fresh", None)


@pytest.mark.parametrize("gap", [2.0, 10.0, 20.0])
def test_after_a_gap_a_fall_of_4_degrees_a_second_is_believed(gap: float) -> None:
    state, trust = judge(TrustState(90.0, 10.0), at(90.0 - 3.9 * gap), 10.0 + gap)
    assert trust.celsius == pytest.approx(90.0 - 3.9 * gap)
    assert state.doubted_since_s is None


@pytest.mark.parametrize("celsius", [0.0, -1.0, -40.0])
def test_nothing_at_or_below_zero_is_a_temperature(celsius: float) -> None:
    assert judge(TrustState(), at(celsius), 1.0)[1].level == "absent"
