"""The mode machine: what enters a mode, what leaves it, and after how long."""

import itertools

from coldplate_governor.law import Decision
from governor.law_play import CPU, NPU, Steps, at, codes, hold, play, ramp


def changes(decisions: list[Decision]) -> list[str]:
    return [mode for mode, _ in itertools.groupby(decision.mode for decision in decisions)]


def test_a_low_duty_is_throttled_after_three_seconds_and_nominal_after_thirty_calm_ones() -> None:
    state, decisions, now = play(NPU, [*hold(80.0, 10), *ramp(80.0, 87.0), *hold(87.0, 15)])
    low = next(second for second, decision in enumerate(decisions) if decision.duty < 0.95)
    assert [decision.mode for decision in decisions[low : low + 4]] == ["NOMINAL"] * 3 + ["THROTTLED"]
    _, after, _ = play(NPU, [*ramp(87.0, 70.0, 2.0), *hold(70.0, 120)], state, now)
    full = next(second for second, decision in enumerate(after) if decision.duty >= 0.98)
    nominal = next(second for second, decision in enumerate(after) if decision.mode == "NOMINAL")
    assert nominal - full >= 30


def test_just_below_the_target_throttled_stays() -> None:
    state, _, now = play(NPU, [*hold(80.0, 10), *ramp(80.0, 87.0), *hold(87.0, 15)])
    warm: Steps = [(1.0, at(83.0 if second % 3 else 84.0)) for second in range(300)]
    _, after, _ = play(NPU, warm, state, now)
    assert changes(after) == ["THROTTLED"]


def test_canaries_are_counted_one_two_four() -> None:
    """E21, E22: one success does not reopen everything; in each stage exactly so many streams may run."""
    state, _, now = play(NPU, hold(97.0, 5))
    _, decisions, _ = play(NPU, [*ramp(97.0, 60.0, 3.0, running=1), *hold(60.0, 200, running=1)], state, now)
    caps = [cap for cap, _ in itertools.groupby(d.limits.max_batch for d in decisions if d.mode == "RECOVERING")]
    assert caps == [1, 2, 4, 8, 16, None]
    assert decisions[-1].mode == "NOMINAL"
    stages = [
        len(list(group))
        for _, group in itertools.groupby(d.limits.max_batch for d in decisions if d.mode == "RECOVERING")
    ]
    assert all(stage >= 10 for stage in stages)
    assert stages[-1] >= 60


def test_without_work_a_stage_takes_longer_and_still_ends() -> None:
    state, _, now = play(NPU, hold(97.0, 5))
    _, decisions, _ = play(NPU, [*ramp(97.0, 60.0, 3.0, running=0), *hold(60.0, 300, running=0)], state, now)
    first = sum(decision.limits.max_batch == 1 for decision in decisions)
    assert 30 <= first <= 32
    assert decisions[-1].mode == "NOMINAL"


def test_a_relapse_goes_back_at_once_and_each_costs_twice_as_much() -> None:
    state, _, now = play(NPU, hold(97.0, 5))
    dwells = []
    for _ in range(7):
        state, cool, now = play(NPU, [*ramp(97.0, 60.0, 3.0, running=1), *hold(60.0, 400, running=1)], state, now)
        spent = sum(decision.mode == "CRITICAL" for decision in cool)
        dwells.append(spent)
        state, hot, now = play(NPU, hold(97.0, 3), state, now)
        assert hot[-1].mode == "CRITICAL"
    assert dwells[0] <= 30
    assert dwells[2:5] == sorted(dwells[2:5])
    assert dwells[4] >= 1.8 * dwells[3] >= 3 * dwells[2] / 2
    assert max(dwells) <= 301


def test_half_an_hour_without_trouble_forgives() -> None:
    state, _, now = play(NPU, hold(97.0, 5))
    state, _, now = play(NPU, [*ramp(97.0, 60.0, 3.0), *hold(60.0, 2400, running=1)], state, now)
    state, (*_, last), now = play(NPU, hold(97.0, 3), state, now)
    assert state.devices[0].mode.relapses == 0
    assert last.dwell_left_s <= 10


def test_critical_that_does_not_help_becomes_fallback() -> None:
    rising: Steps = [(1.0, at(88.0 + 0.4 * second)) for second in range(60)]
    _, decisions, _ = play(NPU, [*hold(80.0, 5), *hold(94.0, 2), *rising])
    fallback = next(second for second, decision in enumerate(decisions) if decision.mode == "FALLBACK")
    assert fallback >= 25
    last = decisions[-1]
    assert last.limits.admit is False
    assert last.rungs[-2:] == ("cpu_overflow", "drain")


def test_a_lost_worker_is_fallback_and_its_first_return_is_quick() -> None:
    state, _, now = play(NPU, hold(70.0, 10, engine_up=True))
    state, gone, now = play(NPU, hold(65.0, 30, engine_up=False), state, now)
    assert {decision.mode for decision in gone} == {"FALLBACK"}
    assert codes(gone[-1]) == {"ENGINE_LOST"}
    _, back, _ = play(NPU, hold(65.0, 200, engine_up=True, running=1), state, now)
    assert changes(back) == ["RECOVERING", "NOMINAL"]


def test_a_worker_lost_again_waits_a_jittered_doubled_time() -> None:
    state, _, now = play(NPU, hold(70.0, 10, engine_up=True))
    waits = []
    for _ in range(6):
        state, gone, now = play(NPU, hold(65.0, 2, engine_up=False), state, now)
        state, back, now = play(NPU, hold(65.0, 1100, engine_up=True, running=1), state, now)
        waits.append(sum(decision.mode == "FALLBACK" for decision in (*gone, *back)))
    assert waits[0] in (10, 11)
    for n, wait in enumerate(waits[1:], 1):
        expected = min(900, 60 * 2**n)
        assert 0.84 * expected <= wait <= 1.16 * expected + 1, waits


def test_a_worker_never_seen_is_no_lost_one() -> None:
    _, decisions, _ = play(NPU, hold(60.0, 30, engine_up=False))
    assert changes(decisions) == ["NOMINAL"]


def test_a_cpu_has_nowhere_to_fall_back_to() -> None:
    state, _, now = play(CPU, hold(70.0, 10, engine_up=True))
    _, decisions, _ = play(CPU, hold(70.0, 30, engine_up=False), state, now)
    assert changes(decisions) == ["NOMINAL"]
    _, hot, _ = play(CPU, [*hold(80.0, 5), *hold(101.0, 60)])
    assert hot[-1].mode == "CRITICAL"
    assert hot[-1].limits.admit is None
    assert hot[-1].limits.max_prefill_tokens == 0


def test_draining_closes_admission_and_ends_with_the_drain() -> None:
    state, draining, now = play(NPU, hold(60.0, 5, draining=True))
    assert (draining[-1].mode, draining[-1].limits.admit, draining[-1].binding) == ("DRAINING", False, "operator")
    _, after, _ = play(NPU, hold(60.0, 60), state, now)
    assert changes(after) == ["THROTTLED", "NOMINAL"]


def test_a_box_too_warm_to_cool_down_comes_back_all_the_same() -> None:
    """E18: five degrees below target may be out of reach for hours."""
    state, _, now = play(NPU, [*hold(80.0, 5), *hold(97.0, 5)])
    _, decisions, _ = play(NPU, [*ramp(97.0, 82.0, 1.0), *hold(82.0, 400)], state, now)
    assert changes(decisions)[:2] == ["CRITICAL", "RECOVERING"]


def test_after_a_suspend_sensors_get_their_time_to_speak() -> None:
    state, _, now = play(NPU, hold(70.0, 10))
    state, (woken,), now = play(NPU, [(3600.0, at(70.0, 3600.0))], state, now)
    assert (woken.mode, woken.rule) == ("RECOVERING", "GAP")
    _, decisions, _ = play(NPU, [(1.0, at(70.0, 3600.0 + second)) for second in range(1, 4)], state, now)
    assert {decision.mode for decision in decisions} == {"RECOVERING"}
