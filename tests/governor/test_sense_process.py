"""The governor with real agents, tools and libraries that work, hang or cannot be used."""

import time
import urllib.request
from itertools import pairwise
from pathlib import Path

import grpc
import psutil
import pytest

from coldplate.profile import load_profile
from governor.fake_control import FakeControl, Request, Response
from support import npu_smi_pages as pages
from support import processes
from support.fake_dcmi import fake_dcmi
from support.npu_smi_pages import StandInTool, duo_tool
from support.processes import Process, free_port, new_folder, until

SAFE = load_profile("310p-duo").safe_limits
DEVICE = "--device=npu:0=310p-duo"


class TimedControl(FakeControl):
    """Notes when each call came."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.arrivals: list[float] = []

    def ApplyLimits(self, request: Request, context: grpc.ServicerContext) -> Response:  # noqa: N802
        self.arrivals.append(time.monotonic())
        return super().ApplyLimits(request, context)

    def longest_gap_s(self, after: int) -> float:
        times = self.arrivals[after:]
        return max((late - early for early, late in pairwise(times)), default=0.0)


@pytest.fixture
def folder() -> Path:
    return new_folder()


@pytest.fixture
def tool(folder: Path) -> StandInTool:
    return duo_tool(folder / "tool")


def governor(control: FakeControl, folder: Path, *args: str, **env: str) -> Process:
    env = {"XDG_RUNTIME_DIR": str(folder), **env}
    return Process("coldplate-governor", [f"--control={control.address}", *args], folder, env)


def agents(process: Process, sensor: str) -> list[psutil.Process]:
    commands = {child: command(child) for child in process.descendants()}
    found = [child for child, words in commands.items() if "coldplate_governor.sense" in words]
    return [child for child in found if any(word.startswith(sensor) for word in commands[child])]


def command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


def has_temperature(request: Request, device: int = 0) -> bool:
    return request.devices[device].readings.HasField("temperature_celsius")


def test_one_poller_whatever_the_number_of_scrapers(folder: Path, tool: StandInTool) -> None:
    port = free_port()
    flags = ("--device=npu:0", "--device=npu:1", f"--sensor=npu-smi={tool.path}", f"--metrics-listen=127.0.0.1:{port}")
    with TimedControl(folder) as control, governor(control, folder, *flags) as process:
        request = control.wait_for("both temperatures", lambda r: has_temperature(r) and has_temperature(r, 1))
        first, second = (item.readings for item in request.devices)
        assert (first.temperature_celsius, second.temperature_celsius) == (45, 47)
        assert first.memory_total_bytes == 44280 * 2**20
        assert first.health == "ok"
        assert list(first.sources) == ["npu-smi"]
        full = control.wait_for("the pages", lambda r: r.devices[1].readings.HasField("card_power_watts"))
        assert full.devices[1].readings.card_power_watts == 13.4
        assert not full.devices[1].readings.HasField("power_watts"), "a card's power is no chip's"
        starts, since = len(tool.starts("info")), time.monotonic()
        while time.monotonic() - since < 2:
            page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
        assert 'npu_chip_info_temperature{id="1"} 47.0' in page
        assert 'npu_chip_info_power{id="1"} 13.4' in page
        assert 'npu_chip_info_health_status{id="0"} 1.0' in page
        assert len(tool.starts("info")) - starts <= (time.monotonic() - since) / 0.8 + 1
        assert process.stop() == 0
    assert tool.alive() == []


@pytest.mark.slow
def test_a_tool_that_begins_to_hang_costs_its_readings_and_nothing_else(folder: Path, tool: StandInTool) -> None:
    flags = (DEVICE, f"--sensor=npu-smi={tool.path}", "--sensor-deadline-s=1.5")
    with TimedControl(folder) as control, governor(control, folder, *flags) as process:
        control.wait_for("a temperature", has_temperature)
        tool.hang()
        calls, most = len(control.requests), 0
        deadline = time.monotonic() + 20
        while not control.requests[-1].devices[0].readings.lost:
            most = max(most, len(tool.alive()))
            assert time.monotonic() < deadline, process.log_tail()
            time.sleep(0.02)
        readings = control.requests[-1].devices[0].readings
        assert "npu-smi.temperature_celsius" in readings.lost
        assert not readings.HasField("temperature_celsius"), "what is lost is not shown, least of all as 0"
        assert most == 1
        assert control.longest_gap_s(calls) < 1.5
        assert process.log().count("no answer in 0.75 s and was killed") == 1, "told once, though it hangs each time"
        tool.hang(False)
        control.wait_for("it is back", has_temperature, 60, after=len(control.requests))
        tool.hang()
        started = len(tool.pids())
        until("it hangs again", lambda: len(tool.pids()) > started, 20)
        assert process.stop() == 0
    assert tool.alive() == []


def test_a_library_that_hangs_is_killed_and_the_tool_beside_it_goes_on(folder: Path, tool: StandInTool) -> None:
    flags = (DEVICE, f"--sensor=npu-smi={tool.path}", f"--sensor=dcmi={fake_dcmi()}", "--sensor-deadline-s=1")
    env = {"FAKE_DCMI_HANG": "dcmi_get_device_temperature"}
    with TimedControl(folder) as control, governor(control, folder, *flags, **env) as process:
        control.wait_for("a temperature", has_temperature)
        first = until("an agent", lambda: agents(process, "dcmi"), 20)[0].pid
        calls, most = len(control.requests), 0
        deadline = time.monotonic() + 20
        while not [agent for agent in agents(process, "dcmi") if agent.pid != first]:
            most = max(most, len(agents(process, "dcmi")))
            assert time.monotonic() < deadline, process.log_tail()
            time.sleep(0.02)
        assert most == 1
        assert control.longest_gap_s(calls) < 1.5
        assert all(map(has_temperature, control.requests[calls:])), "npu-smi has a process of its own"
        assert "silent, killed" in process.log()
        assert process.stop() == 0  # asserts that no child is left


def test_a_library_that_works_tells_what_the_tool_does_not(folder: Path, tool: StandInTool) -> None:
    flags = (DEVICE, f"--sensor=npu-smi={tool.path}", f"--sensor=dcmi={fake_dcmi()}")
    env = {"FAKE_DCMI_CELSIUS": "46"}
    with FakeControl(folder) as control, governor(control, folder, *flags, **env):
        request = control.wait_for("both", lambda r: set(r.devices[0].readings.sources) == {"npu-smi", "dcmi"})
        readings = request.devices[0].readings
        assert readings.temperature_celsius == 46, "the hotter of the two"
        assert (readings.firmware_limit_celsius, readings.reset_celsius) == (95, 115)
        assert readings.throttle_cause == "thermal+power-cap"
        assert list(readings.error_codes) == ["80DE0207", "80E20207"]
        assert readings.health == "alarm", "the worse of the two"


def test_a_tool_that_cannot_work_here_is_told_once_and_safe_limits_hold(folder: Path) -> None:
    tool = StandInTool(folder / "tool")
    tool.answer("info", pages.HELD_ELSEWHERE, code=1)
    with FakeControl(folder) as control, governor(control, folder, DEVICE, f"--sensor=npu-smi={tool.path}") as process:
        request = control.wait_for("it is known", lambda r: list(r.devices[0].readings.unusable) == ["npu-smi"])
        assert request.devices[0].limits.duty == SAFE.duty
        control.wait_for("more rounds", lambda r: r.seq >= request.seq + 3)
        assert process.log().count("sensor cannot be used here") == 1
        assert "held by another container" in process.log()


@pytest.mark.slow
def test_a_tool_that_can_work_at_last_is_used(folder: Path) -> None:
    tool = StandInTool(folder / "tool")
    tool.answer("info", pages.NOT_INITIALISED, code=1)
    with FakeControl(folder) as control, governor(control, folder, DEVICE, f"--sensor=npu-smi={tool.path}") as process:
        control.wait_for("it is known", lambda r: list(r.devices[0].readings.unusable) == ["npu-smi"])
        tool.answer("info", pages.layout_a(pages.DUO))
        request = control.wait_for("a temperature", has_temperature, 60)
        assert not request.devices[0].readings.unusable
        assert "sensor well again" in process.log()


def test_the_tools_a_machine_has_are_the_default(folder: Path, tool: StandInTool) -> None:
    library = folder / "lib"
    library.mkdir()
    (library / "libdcmi.so").symlink_to(fake_dcmi())
    env = {"PATH": f"{tool.folder}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(library)}
    with FakeControl(folder) as control, governor(control, folder, "--device=npu:1", **env):
        control.wait_for("both", lambda r: set(r.devices[0].readings.sources) == {"npu-smi", "dcmi"})


def test_without_tool_and_library_the_governor_runs_and_says_what_to_do(folder: Path) -> None:
    env = {"PATH": "/nowhere"}
    with FakeControl(folder) as control, governor(control, folder, "--device=npu:0", **env) as process:
        request = control.wait_for("safe limits", lambda r: r.seq >= 2)
        assert request.devices[0].limits.duty == SAFE.duty
        assert process.log().count("no sensor for a device") == 1


def test_a_device_that_does_not_exist_is_told_with_those_that_do(folder: Path, tool: StandInTool) -> None:
    flags = ("--device=npu:7", f"--sensor=npu-smi={tool.path}")
    with FakeControl(folder) as control, governor(control, folder, *flags) as process:
        control.wait_for("it goes on", lambda r: r.seq >= 3)
        assert process.log().count("there is no device 7; it shows 0 (NPU 2 chip 0, 310P3)") == 1


@pytest.mark.parametrize("chip", ["310p", "310b1", "910b"])
def test_the_simulated_boards_own_tool_is_read_like_the_board(folder: Path, chip: str) -> None:
    place = folder / "board-tool"
    flags = (f"--chip={chip}", "--count=2", "--start-temperature-celsius=61", f"--npu-smi-dir={place}")
    with processes.board(*flags) as (_, address), FakeControl(folder) as control:
        sensors = (f"--sensor=npu-smi={place}/npu-smi", f"--sensor=board={address}")
        with governor(control, folder, "--device=npu:1=310p-duo", *sensors):
            request = control.wait_for("both", lambda r: set(r.devices[0].readings.sources) == {"npu-smi", "board"})
            readings = request.devices[0].readings
            assert not readings.lost
            assert 55 <= readings.temperature_celsius <= 64
            assert readings.memory_total_bytes > 0
            assert readings.HasField("card_power_watts") == (chip != "910b"), "as its controller tells it"


@pytest.mark.slow
def test_the_loop_keeps_its_second_while_tool_and_library_hang(folder: Path, tool: StandInTool) -> None:
    tool.hang()
    sensors = (f"--sensor=npu-smi={tool.path}", f"--sensor=dcmi={fake_dcmi()}", "--sensor-deadline-s=1.5")
    flags = ("--device=cpu", DEVICE, *sensors)
    env = {"FAKE_DCMI_HANG": "dcmi_init"}
    with TimedControl(folder) as control, governor(control, folder, *flags, **env) as process:
        control.wait_for("the first call", lambda _: True)
        begun, most = len(control.arrivals), 0
        while len(control.arrivals) < begun + 21:
            most = max(most, len(tool.alive()))
            time.sleep(0.02)
        late_s = sorted(abs(b - a - 1) for a, b in pairwise(control.arrivals[begun:]))
        assert late_s[-1] <= 0.1, f"periods stray by {late_s}"
        assert most == 1
        assert "silent, killed" in process.log()
        assert process.stop() == 0
    assert tool.alive() == []
