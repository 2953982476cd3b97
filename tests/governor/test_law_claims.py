"""The claims beside heat: memory, power, firmware, queue, clock; and the ladder they lead to."""

import random
from typing import Any

import pytest

from coldplate_governor.law import Inputs
from coldplate_governor.law.power import fit
from coldplate_governor.law.state import PowerState
from governor.law_play import CPU, NPU, Steps, at, codes, hold, play, ramp

SHORT: dict[str, Any] = {"memory_used_bytes": 95.0, "memory_total_bytes": 100.0}
ROOM: dict[str, Any] = {"memory_used_bytes": 50.0, "memory_total_bytes": 100.0}


def shrinking(seconds: int, running: int = 16) -> Steps:
    """Memory that is short all the time although each cut frees something."""
    return [
        (1.0, Inputs(memory_used_bytes=99.0 - 0.15 * s, memory_total_bytes=100.0, running=running))
        for s in range(seconds)
    ]


def test_short_memory_caps_the_batch_by_a_quarter_each_five_seconds() -> None:
    _, decisions, _ = play(CPU, shrinking(12))
    assert [decisions[second].limits.max_batch for second in (0, 4, 5, 10)] == [12, 12, 9, 6]
    assert codes(decisions[-1]) == {"MEMORY_SHORT"}
    assert decisions[-1].binding == "memory"
    assert decisions[-1].mode == "THROTTLED"


def test_the_memory_ladder_goes_on_to_answers_and_contexts_and_back() -> None:
    state, decisions, now = play(CPU, shrinking(20))
    last = decisions[-1]
    assert last.rungs == ("prefill_budget", "batch_cap", "context_cap", "max_new_tokens")
    assert last.limits.max_context_tokens == CPU.levers.short_context_tokens
    assert last.limits.max_new_tokens == CPU.levers.short_answer_tokens
    between = play(CPU, [(20.0, Inputs(memory_used_bytes=88.0, memory_total_bytes=100.0))], state, now)[1][0]
    assert between.limits == last.limits, "in the band nothing moves"
    _, back, _ = play(CPU, [(1.0, Inputs(**ROOM))] * 200, state, now)
    contexts = [decision.limits.max_context_tokens is None for decision in back]
    answers = [decision.limits.max_new_tokens is None for decision in back]
    batch = [decision.limits.max_batch is None for decision in back]
    assert contexts.index(True) < answers.index(True) < batch.index(True)
    assert not back[-1].limits


def test_cuts_that_free_nothing_stop() -> None:
    """A pool allocated once, or another process: fewer streams would only starve the service."""
    _, decisions, _ = play(CPU, [(1.0, Inputs(running=16, **SHORT))] * 600)
    assert decisions[-1].limits.max_batch == 9
    assert codes(decisions[-1]) == {"MEMORY_HELD"}


def test_memory_stalls_alone_cap_the_batch() -> None:
    _, decisions, _ = play(CPU, [(1.0, Inputs(memory_pressure_percent=40.0, running=8))])
    assert decisions[0].limits.max_batch == 6


@pytest.mark.parametrize("used", [-5.0, 200.0])
def test_memory_that_cannot_be_claims_nothing(used: float) -> None:
    _, decisions, _ = play(CPU, [(1.0, Inputs(memory_used_bytes=used, memory_total_bytes=100.0))] * 10)
    assert not decisions[-1].limits


def test_the_power_model_finds_its_coefficients() -> None:
    rng = random.Random(3)
    state = PowerState()
    for _ in range(600):
        prefill, steps, tokens = rng.uniform(0, 2000), rng.uniform(0, 20), rng.uniform(0, 300)
        watts = 18 + 0.01 * prefill + 1.2 * steps + 0.03 * tokens + rng.gauss(0, 0.3)
        seen = Inputs(
            power_watts=watts, prefill_tokens_per_s=prefill, decode_steps_per_s=steps, decode_tokens_per_s=tokens
        )
        state = fit(state, seen, 1.0, 1.0)
    assert state.coefficients == pytest.approx((18, 10, 12, 3), rel=0.1)


def test_a_power_limit_is_kept_by_duty() -> None:
    idle, span, limit = 18.0, 54.0, 45.0
    state, now, duty = None, 1000.0, 1.0
    rng = random.Random(1)
    watts = 0.0
    for _ in range(120):
        busy = duty * rng.uniform(0.9, 1.0)
        watts = idle + span * busy
        seen = at(60.0, power_watts=watts, power_limit_watts=limit, busy_share=busy, running=8)
        state, (decision,), now = play(NPU, [(1.0, seen)], state, now)
        duty = decision.duty
    assert decision.binding == "power"
    assert codes(decision) == {"POWER_LIMIT"}
    assert limit - 6 <= idle + span * duty <= limit + 3


def test_without_a_power_sensor_heat_is_controlled_all_the_same() -> None:
    _, decisions, _ = play(NPU, [*hold(80.0, 5), *ramp(80.0, 88.0, power_limit_watts=30.0)])
    assert decisions[-1].binding == "thermal"
    assert decisions[-1].duty < 0.8


def test_firmware_throttling_is_told_counted_and_stops_growth() -> None:
    slow = {"frequency_mhz": 540.0, "rated_frequency_mhz": 1080.0, "utilization_percent": 90.0}
    state, _, now = play(NPU, [*hold(80.0, 5), *ramp(80.0, 86.0), *hold(86.0, 10)])
    after, decisions, _ = play(NPU, hold(84.0, 10, **slow), state, now)
    assert "FIRMWARE_THROTTLES" in codes(decisions[0])
    assert decisions[0].binding == "firmware"
    assert after.integral <= state.integral
    assert after.devices[0].firmware.events == 1
    idle, decisions, _ = play(NPU, hold(84.0, 10, **(slow | {"utilization_percent": 0.0})), state, now)
    assert idle.devices[0].firmware.events == 0, "an idle chip may well run slow"
    assert "FIRMWARE_THROTTLES" not in codes(decisions[0])


def test_the_firmwares_own_word_counts_more_than_the_clock() -> None:
    slow = {"frequency_mhz": 540.0, "rated_frequency_mhz": 1080.0, "utilization_percent": 90.0}
    _, idle, _ = play(NPU, hold(70.0, 3, throttle_cause="idle", **slow))
    assert idle[-1].causes == ()
    _, told, _ = play(NPU, hold(70.0, 3, throttle_cause="power-cap"))
    assert "power-cap" in told[-1].causes[0].text


def test_where_the_firmware_was_seen_to_throttle_the_target_is_lower_for_a_while() -> None:
    state, decisions, now = play(NPU, hold(83.0, 5, throttle_cause="thermal"))
    assert decisions[-1].terms.target == pytest.approx(78.0, abs=0.01)
    state, later, now = play(NPU, hold(70.0, 1800), state, now)
    assert later[-1].terms.target is not None
    assert 78.9 <= later[-1].terms.target <= 79.2
    _, cold, _ = play(NPU, hold(40.0, 5, throttle_cause="thermal"))
    assert cold[-1].terms.target == pytest.approx(75.0, abs=0.01), "it lowers the target by 10 °C at most"


def test_a_long_wait_sheds_the_lowest_class_then_shortens_answers_and_lets_go_slowly() -> None:
    wait = NPU.levers.max_queue_wait_s + 10
    state, decisions, now = play(NPU, hold(60.0, 40, queue_wait_s=wait))
    first = [decision.limits.min_priority for decision in decisions].index(2)
    second = [decision.limits.max_new_tokens for decision in decisions].index(NPU.levers.short_answer_tokens)
    assert (first, second) == (10, 20)
    assert decisions[-1].rungs == ("shed", "max_new_tokens")
    assert (decisions[-1].binding, codes(decisions[-1])) == ("queue", {"QUEUE_LONG"})
    _, after, _ = play(NPU, hold(60.0, 120, queue_wait_s=0.0), state, now)
    assert [decision.limits.max_new_tokens for decision in after].index(None) < [
        decision.limits.min_priority for decision in after
    ].index(None)
    assert not after[-1].limits


def test_a_wait_that_comes_and_goes_sheds_nobody() -> None:
    flicker: Steps = [(1.0, at(60.0, queue_wait_s=99.0 if second % 8 else 0.0)) for second in range(200)]
    assert all(decision.limits.min_priority is None for decision in play(NPU, flicker)[1])


LEVELS: dict[str, Any] = {"frequency_levers": True, "clock_shares": (1.0, 0.817, 0.408)}


def test_a_lower_clock_is_wished_for_when_pacing_gives_no_more_and_the_step_is_no_bump() -> None:
    steps = [*ramp(75.0, 87.0, **LEVELS), *hold(86.5, 80, **LEVELS)]
    _, decisions, _ = play(NPU, steps)
    low = next(s for s, decision in enumerate(decisions) if decision.clock_share == 0.817)
    assert low >= 30
    assert decisions[low].rungs[0] == "clock"
    state, _, now = play(NPU, steps[: low + 1])
    _, after, _ = play(NPU, hold(85.0, 1, **LEVELS), state, now)
    assert after[0].duty * 0.817 == pytest.approx(decisions[low].duty, abs=0.06)


def test_without_the_lever_no_clock_is_wished_for() -> None:
    _, decisions, _ = play(NPU, [*ramp(80.0, 86.0), *hold(86.0, 100)])
    assert all(decision.clock_share is None for decision in decisions)


def test_in_danger_the_clock_is_lowest_and_comes_back_step_by_step() -> None:
    state, decisions, now = play(NPU, hold(97.0, 3, **LEVELS))
    assert decisions[-1].clock_share == 0.408
    _, after, _ = play(NPU, [*ramp(97.0, 60.0, 3.0, **LEVELS), *hold(60.0, 500, running=1, **LEVELS)], state, now)
    seen = list(dict.fromkeys(decision.clock_share for decision in after))
    assert seen == [0.408, 0.817, 1.0]


def test_our_own_low_clock_is_not_the_firmwares() -> None:
    state, _, now = play(NPU, hold(97.0, 3, **LEVELS))
    own = {"frequency_mhz": 408.0, "rated_frequency_mhz": 1000.0, "utilization_percent": 90.0}
    _, decisions, _ = play(NPU, hold(60.0, 3, **own, **LEVELS), state, now)
    assert "FIRMWARE_THROTTLES" not in codes(decisions[-1])


@pytest.mark.parametrize(
    ("levers", "field"),
    [
        ((), "duty"),
        (("duty",), "duty"),
        (("cpu_share",), "cpu_share"),
        (("max_batch",), "max_batch"),
        (("other",), None),
    ],
)
def test_a_rung_the_device_does_not_honour_is_left_out_and_the_next_one_carries_on(
    levers: tuple[str, ...], field: str | None
) -> None:
    _, decisions, _ = play(CPU, [*ramp(80.0, 86.5, levers=levers), *hold(86.5, 10, levers=levers)])
    limits = decisions[-1].limits.set_fields()
    assert decisions[-1].duty < 0.9
    assert list(limits)[:1] == ([field] if field else [])
