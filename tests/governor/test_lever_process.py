"""Lever processes for real: the clock is lowered, and put back however its governor ends."""

import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from coldplate.clock import MonotonicClock
from coldplate_governor.levers.control import FrequencyControl, restorations
from governor.fake_control import FakeControl
from governor.fake_cpufreq import limits_khz, make_cpufreq
from support.processes import Process, new_folder, until

FULL = {"policy0": 3_000_000}
LOW = {"policy0": 1_500_000}


@pytest.fixture
def folder() -> Path:
    return new_folder()


@pytest.fixture
def root(folder: Path) -> Path:
    return make_cpufreq(folder, {"policy0": (600_000, 3_000_000)})


def settle(control: FrequencyControl, what: str, share: float | None, until_khz: dict[str, int], root: Path) -> None:
    def round_() -> bool:
        control.supervise()
        control.want(share)
        return control.available and limits_khz(root) == until_khz

    until(what, round_, 20)


@pytest.fixture
def control(folder: Path, root: Path) -> Iterator[FrequencyControl]:
    made = FrequencyControl("cpu", f"cpufreq={root}", folder / "state", MonotonicClock())
    yield made
    made.end()
    made.finish(10)


def supervised(control: FrequencyControl) -> FrequencyControl:
    control.supervise()
    return control


def process_of(control: FrequencyControl) -> psutil.Process:
    assert control._handle is not None
    assert control._handle.pid is not None
    return psutil.Process(control._handle.pid)


def test_a_clock_is_lowered_and_put_back_at_the_end(control: FrequencyControl, folder: Path, root: Path) -> None:
    settle(control, "half the clock", 0.5, LOW, root)
    until("it is told", lambda: supervised(control).in_force == 0.5)
    assert (folder / "state" / "cpu.json").exists()
    settle(control, "no wish", None, FULL, root)
    settle(control, "half again", 0.5, LOW, root)
    child = process_of(control)
    control.end()
    control.finish(10)
    assert limits_khz(root) == FULL
    assert not child.is_running()
    assert not (folder / "state" / "cpu.json").exists()


def test_after_a_kill_the_next_one_puts_back_first(control: FrequencyControl, folder: Path, root: Path) -> None:
    settle(control, "half the clock", 0.5, LOW, root)
    process_of(control).kill()
    until("it is buried", lambda: supervised(control)._handle is None)
    assert limits_khz(root) == LOW
    settle(control, "another puts back and proves", None, FULL, root)
    settle(control, "and goes on", 0.5, LOW, root)
    process_of(control).kill()
    until("it is buried", lambda: supervised(control)._handle is None)
    (left,) = restorations(folder / "state", [], MonotonicClock())
    until("one that only puts back", lambda: supervised(left).dropped is not None, 20)
    assert limits_khz(root) == FULL
    assert restorations(folder / "state", [], MonotonicClock()) == []


def hot(folder: Path, celsius: float = 101.0) -> Path:
    """A thermometer of the processor."""
    hwmon = folder / "class" / "hwmon" / "hwmon0"
    hwmon.mkdir(parents=True)
    (hwmon / "name").write_text("coretemp")
    (hwmon / "temp1_input").write_text(str(int(celsius * 1000)))
    return folder / "class"


def governor(control: FakeControl, folder: Path, root: Path, *args: str) -> Process:
    flags = (
        *(f"--control={control.address}", "--device=cpu", f"--sensor=hwmon={folder}/class"),
        *(f"--frequency=cpufreq={root}", f"--frequency-state={folder}/state", *args),
    )
    return Process("coldplate-governor", flags, folder)


def levers_of(process: Process) -> list[psutil.Process]:
    return [child for child in process.descendants() if "coldplate_governor.levers.child" in child.cmdline()]


@pytest.mark.slow
def test_a_governor_lowers_a_critical_clock_and_puts_it_back_however_it_ends(folder: Path, root: Path) -> None:
    hot(folder)
    with FakeControl(folder) as control:
        with governor(control, folder, root) as process:
            until("the clock is lowered", lambda: limits_khz(root)["policy0"] < 3_000_000, 30)
            assert process.stop() == 0
            assert limits_khz(root) == FULL, "put back before it ended"
        with governor(control, folder, root) as killed:
            until("the clock is lowered", lambda: limits_khz(root)["policy0"] < 3_000_000, 30)
            (lever,) = levers_of(killed)
            killed.signal(9)
            killed.wait()
            until("its lever puts back and ends", lambda: limits_khz(root) == FULL and not lever.is_running(), 20)
        with governor(control, folder, root) as both:
            until("the clock is lowered", lambda: limits_khz(root)["policy0"] < 3_000_000, 30)
            (lever,) = levers_of(both)
            lever.suspend()  # so that it cannot put anything back
            both.signal(9)
            both.wait()
            lever.kill()
            psutil.wait_procs([lever], timeout=10)
            assert limits_khz(root) != FULL
        flags = (f"--control={control.address}", "--device=cpu", f"--frequency-state={folder}/state")
        with Process("coldplate-governor", flags, folder) as after:
            until("the next start puts back, also without the lever", lambda: limits_khz(root) == FULL, 20)
            until("and says so", lambda: "clock put back" in after.log(), 10)


def hanging_tool(folder: Path) -> Path:
    """npu-smi that never answers."""
    tool = folder / "bin" / "npu-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexec sleep 1000\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return tool


@pytest.mark.slow
def test_a_hung_tool_delays_neither_the_loop_nor_the_end_and_the_lever_is_dropped_once(folder: Path) -> None:
    tool = hanging_tool(folder)
    flags = ("--device=npu:0", f"--frequency=work-level={tool}", f"--frequency-state={folder}/state")
    with FakeControl(folder) as control:
        process = Process("coldplate-governor", [f"--control={control.address}", *flags], folder)
        with process:
            control.wait_for("the first call", lambda _: True)
            until("it is dropped", lambda: "frequency lever dropped" in process.log(), 60)
            gaps = sorted(control.gaps_s())
            assert gaps[int(0.9 * len(gaps))] < 1.1, gaps[-5:]
            assert process.stop(10) == 0  # asserts that nothing is left behind
        assert process.log().count("frequency lever dropped") == 1
        assert "gave no answer" in process.log()
    assert not [child for child in psutil.process_iter(["cmdline"]) if str(tool) in (child.info["cmdline"] or [])]


def test_the_process_ends_with_code_2_for_what_it_does_not_know(folder: Path) -> None:
    arguments = ["lever", "--device=npu:0", "--lever=set-freq", f"--state={folder}/state"]
    process = Process("coldplate-governor", arguments, folder)
    assert process.wait() == 2
    assert "there is no `npu-smi set-freq`" in process.log()
    assert list(folder.iterdir()) == [process.log_path], "nothing was touched"
