"""What the loop sees of a frequency lever: asked once at a time, dropped after two failures, never waited for."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from coldplate.clock import ManualClock
from coldplate_governor.levers.base import Level
from coldplate_governor.levers.control import ANSWER_S, PROOF_S, FrequencyControl, end_all, restorations
from coldplate_governor.levers.process import LeverHandle
from coldplate_governor.levers.saved import Saved, SavedSetting

LEVELS = [[1.0, "fast"], [0.8, "middle"], [0.4, "slow"]]


class FakeHandle(LeverHandle):
    """A lever process that says what the test has it say."""

    def __init__(self, device: str, lever: str, state: Path, restore_only: bool) -> None:
        super().__init__(device, lever, state, restore_only)
        self.requests: list[tuple[int, float | None]] = []
        self.said: list[dict[str, Any]] = []
        self.code: int | None = None
        self.told_to_end = self.killed = self.unkillable = False

    def start(self) -> None: ...

    def send(self, number: int, share: float | None) -> bool:
        self.requests.append((number, share))
        return self.code is None

    def take(self) -> list[dict[str, Any]]:
        said, self.said = self.said, []
        return said

    def ended(self) -> int | None:
        return self.code

    def end(self) -> None:
        self.told_to_end = True

    def kill(self) -> None:
        self.killed = True
        self.code = None if self.unkillable else -9

    def wait(self, timeout_s: float) -> bool:
        return self.code is not None

    def ready(self) -> None:
        self.said.append({"event": "ready", "levels": LEVELS, "in_force": 1.0})

    def answer(self, problem: str | None = None, in_force: float | None = None) -> None:
        number, share = self.requests[-1]
        force = None if problem else in_force or share or 1.0
        self.said.append({"event": "set", "id": number, "in_force": force, "level": "x", "problem": problem})


class Rig:
    def __init__(self, restore_only: bool = False) -> None:
        self.clock = ManualClock()
        self.handles: list[FakeHandle] = []
        self.control = FrequencyControl("npu:0", "hook=x", Path("/none"), self.clock, restore_only, self._make)

    def _make(self, device: str, lever: str, state: Path, restore_only: bool) -> FakeHandle:
        self.handles.append(FakeHandle(device, lever, state, restore_only))
        return self.handles[-1]

    @property
    def handle(self) -> FakeHandle:
        return self.handles[-1]

    def round(self, share: float | None, seconds: float = 1.0) -> None:
        """One round of the loop."""
        self.clock.advance(seconds)
        self.control.supervise()
        self.control.want(share)

    def start(self) -> None:
        self.round(None)
        self.handle.ready()
        self.round(None)


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.start()
    return made


def test_it_is_there_once_proven_and_asked_for_the_nearest_level_once() -> None:
    rig = Rig()
    rig.round(0.5)
    assert not rig.control.available
    rig.handle.ready()
    rig.round(0.5)
    assert rig.control.available
    assert rig.handle.requests == [(1, 0.4)]
    rig.round(0.5)
    rig.round(0.75)
    assert rig.handle.requests == [(1, 0.4)], "the answer has not come"
    rig.handle.answer()
    rig.round(0.75)
    assert rig.handle.requests == [(1, 0.4), (2, 0.8)]
    rig.handle.answer(in_force=0.82)
    rig.round(0.74)
    assert rig.control.in_force == 0.82
    assert len(rig.handle.requests) == 2


@pytest.mark.parametrize("share", [None, 1.0, 0.95])
def test_no_wish_is_how_it_was_before(rig: Rig, share: float | None) -> None:
    rig.round(0.4)
    rig.handle.answer()
    rig.round(share)
    assert rig.handle.requests[-1] == (2, None)
    rig.handle.answer()
    for _ in range(200):
        rig.round(share)
    assert len(rig.handle.requests) == 2


def test_a_low_clock_is_asked_for_again_every_minute(rig: Rig) -> None:
    rig.round(0.4)
    rig.handle.answer()
    for _ in range(59):
        rig.round(0.4)
    assert len(rig.handle.requests) == 1
    rig.round(0.4)
    rig.round(0.4)
    assert rig.handle.requests[1:] == [(2, 0.4)]


def test_two_failures_in_a_row_drop_it_once_and_one_does_not(rig: Rig) -> None:
    rig.round(0.4)
    for problem in ("refused", None, "refused"):
        rig.handle.answer(problem)
        rig.round(0.4, 3.0)
        rig.round(0.8, 3.0)
    assert rig.control.available
    assert len(rig.handle.requests) >= 4
    with capture_logs() as logs:
        rig.handle.answer("refused again")
        for _ in range(100):
            rig.round(0.4)
    assert not rig.control.available
    assert rig.control.in_force is None
    assert rig.handle.told_to_end, "it is to put the clock back"
    (said,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert "dropped" in said["event"]
    assert said["reason"] == "refused again"
    rig.handle.code = 0
    rig.round(0.4)
    rig.round(0.4)
    assert len(rig.handles) == 1, "a dropped lever is not started again"


def test_after_a_failure_nobody_knows_what_is_set_so_it_is_set_again(rig: Rig) -> None:
    rig.round(0.4)
    rig.handle.answer("took no effect")
    rig.round(None)
    assert len(rig.handle.requests) == 1, "not in the same breath"
    rig.round(None, 3.0)
    assert rig.handle.requests[-1] == (2, None)


def test_one_that_hangs_is_killed_and_tried_once_more_and_then_dropped(rig: Rig) -> None:
    rig.round(0.4)
    rig.round(0.4, ANSWER_S + 1)
    assert rig.handle.killed
    rig.round(0.4)
    assert not rig.control.available
    rig.round(0.4, 3.0)
    assert len(rig.handles) == 2
    rig.round(0.4, PROOF_S + 1)
    assert rig.handle.killed
    rig.round(0.4)
    assert rig.control.dropped == "its process hung and was killed"


def test_beside_one_that_cannot_be_killed_none_is_started(rig: Rig) -> None:
    rig.handle.unkillable = True
    rig.round(0.4)
    for _ in range(100):
        rig.round(0.4)
    assert rig.handle.killed
    assert len(rig.handles) == 1
    assert "cannot be killed" in str(rig.control.dropped)


def test_one_that_cannot_be_used_is_tried_twice_and_its_reason_told() -> None:
    rig = Rig()
    for attempt in (1, 2):
        rig.round(0.4, 3.0)
        assert len(rig.handles) == attempt
        rig.handle.said.append({"event": "unusable", "problem": "npu-smi is not on this machine"})
        rig.handle.code = 0
        rig.round(0.4)
    assert rig.control.dropped == "npu-smi is not on this machine"


@given(steps=st.lists(st.tuples(st.sampled_from([None, 0.1, 0.5, 0.9]), st.sampled_from("..ofkx"), st.floats(0.1, 90))))
def test_whatever_the_process_does_one_request_is_under_way_and_a_dropped_lever_is_left_alone(
    steps: list[tuple[float | None, str, float]],
) -> None:
    rig = Rig()
    for share, what, seconds in steps:
        rig.round(share, seconds)
        handle = rig.handle
        before = len(handle.requests)
        if what == "o" and handle.requests:
            handle.answer()
        elif what == "f" and handle.requests:
            handle.answer("failed")
        elif what == "k":
            handle.ready()
        elif what == "x":
            handle.code = 1
        dropped = rig.control.dropped
        rig.round(share)
        assert len(handle.requests) <= before + 1
        if dropped:
            assert rig.handle is handle
            assert len(handle.requests) == before
        assert rig.control.in_force is None or 0 < rig.control.in_force <= 1
        assert not (rig.control.available and rig.control.dropped)


def test_at_the_end_all_put_back_together_and_the_slow_one_is_killed() -> None:
    rigs = [Rig(), Rig()]
    for one in rigs:
        one.start()
    rigs[0].handle.code = 0
    handles = [one.handle for one in rigs]
    end_all([one.control for one in rigs], ManualClock(), 4.0)
    assert [handle.told_to_end for handle in handles] == [True, True]
    assert [handle.killed for handle in handles] == [False, True]


def test_what_nobody_governs_any_more_is_put_back_once(tmp_path: Path) -> None:
    for device in ("cpu", "npu:0"):
        SavedSetting(tmp_path, device).store(Saved(device, "hook=x", "1.00"))
    left = restorations(tmp_path, [("cpu", "cpufreq")], ManualClock())
    assert [(control.device, control.lever) for control in left] == [("npu:0", "hook=x")]
    rig = Rig(restore_only=True)
    rig.round(None)
    assert rig.handle.restore_only
    rig.handle.said.append({"event": "restored", "problem": None})
    rig.handle.code = 0
    for _ in range(5):
        rig.round(None)
    assert len(rig.handles) == 1
    assert not rig.control.available


def test_level_names_come_with_their_shares(rig: Rig) -> None:
    assert rig.control.levels == (Level(1.0, "fast"), Level(0.8, "middle"), Level(0.4, "slow"))
