"""Frequency levers against stand-ins: what they prove before use, set, put back and refuse."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate.device_id import DeviceId
from coldplate_governor.levers.base import Level, LeverError, nearest
from coldplate_governor.levers.child import LeverProcess
from coldplate_governor.levers.cpufreq import CpufreqLever
from coldplate_governor.levers.hook import HookLever
from coldplate_governor.levers.registry import LEVERS, make_lever
from coldplate_governor.levers.saved import Saved, SavedSetting, leftovers
from coldplate_governor.levers.work_level import PARTS, WorkLevelLever
from coldplate_governor.sensors.tool import ToolError, ToolOutput
from governor.fake_cpufreq import limits_khz, make_cpufreq

CPU = DeviceId("cpu")
NPU = DeviceId("npu", 0)


class FakeNpuSmi:
    """npu-smi of a 310B: the table, the level page, and the set command. ``mood``: "", "refuse", "ignore" or "hang"."""

    def __init__(self, part: str = "20T", level: str | None = None, chip: str = "310B1", mood: str = "") -> None:
        self.part = part
        self.level = level or PARTS[part][0]
        self.chip = chip
        self.mood = mood
        self.sets: list[tuple[str, ...]] = []

    def run(self, args: tuple[str, ...], timeout_s: float) -> ToolOutput:
        if self.mood == "hang":
            raise ToolError("npu-smi gave no answer in 8 s and was killed", timed_out=True)
        if args == ("info",):
            return ToolOutput(self._table(), 0, 0.0)
        where = ("-i", "0", "-c", "0")
        if args == ("info", "-t", "nve-level", *where):
            return ToolOutput(f"\tnve level                      : {self.level}\n", 0, 0.0)
        assert args[:3] == ("set", "-t", "nve-level")
        assert args[3:7] == where
        assert args[7] == "-d"
        assert len(args) == 9, "nothing more is ever asked for: is_in_flash stays 0"
        self.sets.append(args)
        if self.mood == "refuse":
            return ToolOutput("This device does not support setting nve-level.\n", 1, 0.0)
        if self.mood != "ignore":
            self.level = PARTS[self.part][int(args[8])]
        return ToolOutput("\tStatus                         : OK\n", 0, 0.0)

    def _table(self) -> str:
        line = f"+{31 * '='}+{17 * '='}+{54 * '='}+"
        rows = (
            ("NPU     Name", "Health", "Power(W)     Temp(C)           Hugepages-Usage(page)"),
            ("Chip    Device", "Bus-Id", "AICore(%)    Memory-Usage(MB)"),
            None,
            (f"0       {self.chip}", "Alarm", "0.0          65                15    / 15"),
            ("0       0", "NA", "0            3628 / 15609"),
            None,
        )
        return "\n".join("| {:<29} | {:<15} | {:<52} |".format(*row) if row else line for row in rows)


@pytest.mark.parametrize(
    ("part", "original", "expected"),
    [
        ("20T", "20T_1.6GHz", {"20T_1.6GHz": 1.0, "16T_1.6GHz": 0.82, "8T_1.6GHz": 0.41}),
        ("20T", "16T_1.6GHz", {"16T_1.6GHz": 0.82, "8T_1.6GHz": 0.41}),
        ("8T", "8T_1.0GHz", {"8T_1.0GHz": 1.0, "4T_1.0GHz": 0.5}),
    ],
)
def test_a_work_level_is_never_above_what_was_set_and_leaves_the_cpu_alone(
    part: str, original: str, expected: dict[str, float]
) -> None:
    tool = FakeNpuSmi(part, original, "310B1" if part == "20T" else "310B4")
    lever = WorkLevelLever(0, tool=tool)
    levels = lever.probe(lever.original())
    assert {level.name: round(level.share, 2) for level in levels} == expected
    assert tool.level == original
    assert len(tool.sets) == 1, "proven by setting what is set already"


def test_each_work_level_is_set_read_back_and_put_back() -> None:
    tool = FakeNpuSmi()
    lever = WorkLevelLever(0, tool=tool)
    for level in lever.probe("20T_1.6GHz"):
        assert lever.set(level) == level.share
        assert tool.level == level.name
    lever.restore("20T_1.6GHz")
    assert tool.level == "20T_1.6GHz"
    sets = len(tool.sets)
    lever.restore("20T_1.6GHz")
    assert len(tool.sets) == sets, "nothing to put back"


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        (FakeNpuSmi(mood="refuse"), "does not support setting nve-level.; it takes root on the bare host"),
        (FakeNpuSmi(mood="hang"), "gave no answer"),
        (FakeNpuSmi(level="8T_1.6GHz"), "no slower level is left"),
        (FakeNpuSmi("8T", chip="310B"), "--frequency npu:0@work-level=8T (or 20T)"),
    ],
)
def test_a_work_level_that_cannot_be_proven_is_not_used(tool: FakeNpuSmi, says: str) -> None:
    lever = WorkLevelLever(0, tool=tool)
    with pytest.raises(LeverError) as refused:
        lever.probe(lever.original())
    assert says in str(refused.value)


def test_a_part_that_nothing_tells_may_be_named() -> None:
    tool = FakeNpuSmi("8T", chip="310B")
    lever = WorkLevelLever(0, "8T", tool)
    assert [level.name for level in lever.probe(lever.original())] == ["8T_1.0GHz", "4T_1.0GHz"]
    with pytest.raises(LeverError, match=r"part of 8T has no level '20T_1\.6GHz'"):
        lever.probe("20T_1.6GHz")


def test_a_level_that_is_said_to_be_set_and_is_not_is_an_error() -> None:
    tool = FakeNpuSmi()
    lever = WorkLevelLever(0, tool=tool)
    levels = lever.probe("20T_1.6GHz")
    tool.mood = "ignore"
    with pytest.raises(LeverError, match=r"16T_1\.6GHz was asked for, npu-smi said: .* and 20T_1\.6GHz is set"):
        lever.set(levels[1])


def test_a_chip_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(LeverError, match="no npu:3: 310B1 as npu:0"):
        WorkLevelLever(3, tool=FakeNpuSmi()).original()


def test_cpufreq_holds_every_policy_and_puts_each_back(tmp_path: Path) -> None:
    root = make_cpufreq(tmp_path, {"policy0": (800_000, 3_000_000), "policy4": (800_000, 2_000_000)})
    (root / "cpufreq/policy4/scaling_max_freq").write_text("1800000\n")
    lever = CpufreqLever(str(root))
    original = lever.original()
    levels = lever.probe(original)
    assert levels[0].share == 0.9, "an operator's own limit is never raised"
    assert levels[-1].share == 0.4, "the slowest that both have"
    assert lever.set(Level(0.5, "50%")) == 0.5
    assert limits_khz(root) == {"policy0": 1_500_000, "policy4": 1_000_000}
    lever.restore(original)
    assert limits_khz(root) == {"policy0": 3_000_000, "policy4": 1_800_000}


def test_cpufreq_that_is_absent_or_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(LeverError, match="does not let its clock be set"):
        CpufreqLever(str(tmp_path)).original()
    root = make_cpufreq(tmp_path, {"policy0": (800_000, 3_000_000)})
    lever = CpufreqLever(str(root))
    original = lever.original()
    limit = root / "cpufreq/policy0/scaling_max_freq"
    limit.unlink()
    limit.mkdir()
    with pytest.raises(LeverError, match=r"policy0/scaling_max_freq: .*it takes root"):
        lever.probe(original)


class FakeHook:
    """Answers each call with the next of ``answers``: text, or (text, exit code)."""

    def __init__(self, *answers: str | tuple[str, int]) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, ...]] = []

    def run(self, args: tuple[str, ...], timeout_s: float) -> ToolOutput:
        self.calls.append(args)
        answer = self.answers.pop(0)
        text, code = (answer, 0) if isinstance(answer, str) else answer
        return ToolOutput(text, code, 0.0)


def test_a_hook_gets_the_share_as_its_last_word_and_answers_with_what_is_in_force() -> None:
    tool = FakeHook("1.0\n", "warning: slow BMC\n0.5\n\n", "1")
    lever = HookLever("bmc --host 'rack 7' ; rm", tool)
    levels = lever.probe(lever.original())
    assert [levels[0].share, levels[-1].share] == [1.0, 0.1]
    assert lever.set(Level(0.6, "60%")) == 0.5
    lever.restore("1.00")
    words = ("--host", "rack 7", ";", "rm")
    assert tool.calls == [(*words, "1.00"), (*words, "0.60"), (*words, "1.00")], "no shell has seen it"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (("no route to the BMC", 3), "ended with 3 and said: no route to the BMC"),
        ("", "it said: nothing"),
        ("done\n", "expected the share in force"),
        ("nan\n", "expected the share in force"),
        ("0\n", "expected the share in force"),
        ("60\n", "expected the share in force"),
        ("1.0\n", "0.60 was asked for and 1.00 is in force"),
    ],
)
def test_a_hook_that_does_not_do_it_is_an_error(answer: str | tuple[str, int], says: str) -> None:
    with pytest.raises(LeverError) as failed:
        HookLever("bmc", FakeHook(answer)).set(Level(0.6, "60%"))
    assert says in str(failed.value)


@pytest.mark.parametrize(
    ("device", "spec", "says"),
    [
        (CPU, "turbo", "expected one of work-level, cpufreq, hook"),
        (CPU, "work-level", "it is for npu devices"),
        (NPU, "cpufreq", "it is for cpu devices"),
        (NPU, "work-level=9T", "expected 20T, 8T or the path of npu-smi"),
        (NPU, "hook", "needs a command"),
        (NPU, "hook='", "No closing quotation"),
        (NPU, "set-freq", "there is no `npu-smi set-freq`, on no chip and in no driver"),
        (NPU, "npu-smi set-freq -d 0 -f 600", "there is no `npu-smi set-freq`"),
        (NPU, "hook=npu-smi set-freq -d 0 -f", "there is no `npu-smi set-freq`"),
    ],
)
def test_an_unusable_spec_is_refused_in_words(device: DeviceId, spec: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        make_lever(device, spec)


def test_every_lever_can_be_made() -> None:
    arguments = {"hook": "=true"}
    for name, kind in LEVERS.items():
        assert make_lever(NPU if kind.device_kind == "npu" else CPU, name + arguments.get(name, "")).name == name


SHARES = st.floats(0.01, 1.0)


@given(shares=st.lists(SHARES, min_size=1, max_size=6, unique=True), wish=SHARES, now=st.integers(0, 5))
def test_the_nearest_level_is_chosen_and_the_present_one_kept_between_two(
    shares: list[float], wish: float, now: int
) -> None:
    levels = [Level(share, str(share)) for share in shares]
    least = min(abs(level.share - wish) for level in levels)
    assert abs(nearest(levels, wish).share - wish) == least
    current = levels[now % len(levels)]
    chosen = nearest(levels, wish, current)
    assert abs(chosen.share - wish) <= least + 0.02
    assert nearest(levels, wish, chosen) == chosen


def test_a_setting_is_kept_until_it_is_put_back_and_damage_is_no_setting(tmp_path: Path) -> None:
    kept = SavedSetting(tmp_path / "state", "npu:0")
    with kept.held(1):
        assert kept.load() is None
        kept.store(Saved("npu:0", "hook=x", "1.00"))
        assert leftovers(tmp_path / "state") == [Saved("npu:0", "hook=x", "1.00")]
        with pytest.raises(LeverError, match="another governor"), SavedSetting(tmp_path / "state", "npu:0").held(0):
            pass
        path = tmp_path / "state" / "npu-0.json"
        whole = json.loads(path.read_text())
        for damaged in ("", "[]", "{}", json.dumps(whole | {"original": 1}), json.dumps(whole | {"boot": "before"})):
            path.write_text(damaged)
            assert kept.load() is None
        kept.clear()
        kept.clear()
    assert leftovers(tmp_path / "nowhere") == []


def test_what_was_set_before_is_kept_or_nothing_is_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LeverError, match="--frequency-state"), SavedSetting(tmp_path / "file", "cpu").held(0):
        pass
    kept = SavedSetting(tmp_path / "gone", "cpu")
    with pytest.raises(LeverError, match="what was set before has to be kept"):
        kept.store(Saved("cpu", "cpufreq", "policy0=1"))


def test_a_process_begins_by_putting_back_what_a_killed_one_left(tmp_path: Path) -> None:
    tool = FakeNpuSmi()
    kept = SavedSetting(tmp_path, "npu:0")
    killed = LeverProcess(NPU, "work-level", WorkLevelLever(0, tool=tool), kept)
    killed.begin()
    killed.set(killed.levels[-1].share)
    assert tool.level == "8T_1.6GHz"
    next_one = LeverProcess(NPU, "work-level", WorkLevelLever(0, tool=tool), kept)
    next_one.begin()
    assert tool.level == "20T_1.6GHz", "else the low level would have become what is put back"
    assert len(next_one.levels) == 3
    next_one.set(next_one.levels[1].share)
    assert next_one.set(None) == 1.0
    assert tool.level == "20T_1.6GHz"
    next_one.restore()
    assert kept.load() is None


def test_what_cannot_be_put_back_is_not_forgotten(tmp_path: Path) -> None:
    tool = FakeNpuSmi()
    kept = SavedSetting(tmp_path, "npu:0")
    process = LeverProcess(NPU, "work-level", WorkLevelLever(0, tool=tool), kept)
    process.begin()
    process.set(0.4)
    tool.mood = "hang"
    with pytest.raises(LeverError):
        process.restore()
    assert kept.load() == Saved("npu:0", "work-level", "20T_1.6GHz")
