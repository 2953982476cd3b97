"""How much the loop does in a round, and that it keeps doing it: work is counted, not timed."""

import sys
import time
from typing import Any

import pytest
from governor_loop import HOUR_MB, PlayedAgent, Rounds, hour_mb
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from coldplate.clock import ManualClock
from coldplate.device_id import DeviceId
from coldplate.profile import load_profile
from coldplate_governor.agents import Sample
from coldplate_governor.control_link import Directive
from coldplate_governor.feedback import DeviceFeedback
from coldplate_governor.law import decide
from coldplate_governor.loop import DeviceGovernor, HeatsinkGovernor
from coldplate_governor.settings import GovernedDevice

NPU = load_profile("310p-duo")


class CountingRounds(Rounds):
    """Counts the Python functions called in each round."""

    def __init__(self, devices: int, count: int) -> None:
        super().__init__(devices, count)
        self.calls: list[int] = []
        self._count = 0

    def run(self) -> None:
        sys.setprofile(self._called)
        try:
            super().run()
        finally:
            sys.setprofile(None)

    def _called(self, frame: Any, event: str, argument: Any) -> None:
        self._count += event == "call"

    def wait(self, timeout_s: float) -> bool:
        self.calls.append(self._count)
        self._count = 0
        return super().wait(timeout_s)


def calls_a_round(devices: int, rounds: int = 150) -> tuple[float, float]:
    """Mean of the rounds 50 to 100, and of the last 50."""
    counted = CountingRounds(devices, rounds)
    counted.run()
    return sum(counted.calls[50:100]) / 50, sum(counted.calls[-50:]) / 50


def test_a_round_does_the_same_work_for_each_device_and_no_more_as_time_goes_on() -> None:
    one, one_later = calls_a_round(1)
    many, many_later = calls_a_round(16)
    assert many <= 17 * one
    assert one_later <= 1.2 * one
    assert many_later <= 1.2 * many
    assert many / 16 < 1500, "a bound on calls, not on time: what a round costs is benchmarks/governor_loop.py's to say"


@pytest.mark.slow
def test_an_hour_of_rounds_leaves_nothing_behind() -> None:
    assert hour_mb(16) <= HOUR_MB


class KeepingRounds(Rounds):
    """Keeps what each round has decided."""

    def __init__(self, devices: int, count: int) -> None:
        super().__init__(devices, count)
        self.kept: list[object] = []

    def wait(self, timeout_s: float) -> bool:
        self.kept.append(self.snapshot.directives)
        return super().wait(timeout_s)


def test_jumps_of_the_wall_clock_change_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    def decisions() -> list[object]:
        rounds = KeepingRounds(2, 200)
        rounds.run()
        return rounds.kept

    steady = decisions()
    days = iter(range(10**6))
    for name, unit in (("time", 1), ("time_ns", 10**9)):
        monkeypatch.setattr(time, name, lambda unit=unit: (-1) ** next(days) * 86_400 * unit)
    assert decisions() == steady
    assert len(steady) == 200


class BrokenAgent(PlayedAgent):
    """An agent whose every call fails in a way nobody has thought of."""

    def take(self) -> list[Sample]:
        raise RuntimeError("out of its mind")


def heatsink(*agents: PlayedAgent) -> HeatsinkGovernor:
    return HeatsinkGovernor(
        [
            DeviceGovernor(GovernedDevice(DeviceId("npu", index), NPU, ()), agent)  # type: ignore[arg-type]
            for index, agent in enumerate(agents)
        ]
    )


def test_one_bad_device_costs_neither_the_loop_nor_its_neighbour() -> None:
    clock = ManualClock()
    group = heatsink(BrokenAgent(0, clock), PlayedAgent(1, clock))
    with capture_logs() as logs:
        for _ in range(20):
            clock.advance(1.0)
            broken, well = group.round({}, clock.now())
    assert broken.decision.limits == NPU.safe_limits
    assert well.readings.values["temperature_celsius"] > 0
    said = [entry for entry in logs if "out of its mind" in str(entry)]
    assert len(said) == 1, "told once, not every second"


def test_a_law_that_fails_leaves_safe_limits_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("never")

    monkeypatch.setattr("coldplate_governor.loop.decide", fails)
    clock = ManualClock()
    group = heatsink(PlayedAgent(0, clock), PlayedAgent(1, clock))
    with capture_logs() as logs:
        for _ in range(5):
            directives = group.round({}, clock.now())
    assert [item.decision.limits for item in directives] == [NPU.safe_limits] * 2
    assert {item.decision.mode for item in directives} == {"SAFE"}
    assert len([entry for entry in logs if entry["log_level"] == "error"]) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from(["temperature_celsius", "power_watts", "memory_used_bytes", "utilization_percent", "nonsense"])
READINGS = st.dictionaries(NAMES, JSON, max_size=5)


class ToldAgent(PlayedAgent):
    """Says what it was told to, measured when it says."""

    def __init__(self, samples: list[tuple[dict[str, Any], float]]) -> None:
        super().__init__(0, ManualClock())
        self.samples = samples

    def take(self) -> list[Sample]:
        if not self.samples:
            return []
        readings, at_s = self.samples.pop(0)
        return [Sample("told", readings, None, at_s)]


@settings(deadline=None, max_examples=60)
@given(samples=st.lists(st.tuples(READINGS, st.floats(-1e6, 1e6)), max_size=8))
def test_whatever_an_agent_says_and_however_its_clock_jumps_the_loop_goes_on(
    samples: list[tuple[dict[str, Any], float]],
) -> None:
    clock = ManualClock(1000.0)
    group = heatsink(ToldAgent(list(samples)))
    for _ in range(len(samples) + 2):
        clock.advance(1.0)
        (directive,) = group.round({}, clock.now())
        duty = directive.decision.limits.duty
        assert duty is None or NPU.levers.min_duty <= duty <= 1
        for value in directive.readings.values.values():
            assert value == value
            assert abs(value) < float("inf")


class FakeFrequency:
    def __init__(self, available: bool) -> None:
        self.available = available
        self.wishes: list[float | None] = []

    def want(self, share: float | None) -> None:
        self.wishes.append(share)


@pytest.mark.parametrize("available", [True, False])
def test_the_law_knows_whether_there_is_a_frequency_lever_and_its_wish_goes_there(
    available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def observed(profile: Any, state: Any, inputs: Any, now_s: float) -> Any:
        seen.append(inputs["npu:0"].frequency_levers)
        return decide(profile, state, inputs, now_s)

    monkeypatch.setattr("coldplate_governor.loop.decide", observed)
    lever = FakeFrequency(available)
    clock = ManualClock()
    device = DeviceGovernor(
        GovernedDevice(DeviceId("npu", 0), NPU, ()),
        PlayedAgent(0, clock),  # type: ignore[arg-type]
        lever,  # type: ignore[arg-type]
    )
    (directive,) = HeatsinkGovernor([device]).round({}, 1.0)
    assert seen == [available]
    assert lever.wishes == [directive.decision.clock_share]


def test_directives_go_out_for_every_device_each_round() -> None:
    rounds = Rounds(3, 4)
    sent: list[list[str]] = []

    class Link:
        def apply(self, directives: list[Directive]) -> dict[str, DeviceFeedback]:
            sent.append([item.device for item in directives])
            return {}

    rounds.link = Link()  # type: ignore[assignment]
    rounds.run()
    assert sent == [["npu:0", "npu:1", "npu:2"]] * 4
