"""The npu-smi sensor against a stand-in tool that is a real process."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from coldplate_governor.sensors import tool as tool_module
from coldplate_governor.sensors.base import AGE, SensorError, SensorUnusable
from coldplate_governor.sensors.npu_smi import NpuSmiSensor
from coldplate_governor.sensors.tool import ToolError, ToolRunner, end_tools
from support import npu_smi_pages as pages
from support.npu_smi_pages import Chip, StandInTool, duo_tool, is_alive, layout_a, layout_b
from support.processes import until

MIB = 2**20


@pytest.fixture(autouse=True)
def _runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def duo(tmp_path: Path) -> Iterator[StandInTool]:
    stand_in = duo_tool(tmp_path / "tool")
    yield stand_in
    end_tools()


def read_all(sensor: NpuSmiSensor, reads: int = 4) -> dict[str, float | str]:
    """What several reads tell together: each asks for one page more."""
    told: dict[str, float | str] = {}
    for _ in range(reads):
        try:
            told |= sensor.read()
        except SensorError as error:
            told |= error.readings
    return told


def test_a_duo_chip_has_its_own_clock_and_its_cards_power(duo: StandInTool) -> None:
    told = read_all(NpuSmiSensor(1, duo.path))
    assert float(told.pop(AGE)) < 5
    assert told == {
        "temperature_celsius": 47,
        "utilization_percent": 12,
        "memory_used_bytes": 1412 * MIB,
        "memory_total_bytes": 43693 * MIB,
        "health": "ok",
        "frequency_mhz": 1080,
        "rated_frequency_mhz": 1080,
        "card_power_watts": 13.4,
        "board_temperature_celsius": 41,
        "memory_bandwidth_percent": 51,
    }
    assert "info -m" not in duo.starts(), "the table of a 310P names the logical ids itself"
    assert read_all(NpuSmiSensor(0, duo.path))["frequency_mhz"] == 960


def test_a_910b_is_found_by_its_logical_id_and_has_hbm(tmp_path: Path) -> None:
    stand_in = StandInTool(tmp_path / "tool")
    stand_in.answer("info", layout_b([pages.B910_IDLE, pages.B910_BUSY]))
    stand_in.answer("info -m", pages.MAPPING_910B)  # NPU 1 is device 0
    stand_in.answer("info -t common -i 1", pages.COMMON_910B)
    stand_in.answer("info -t usages -i 1 -c 0", pages.USAGES_910B)
    stand_in.answer("info -t memory -i 1 -c 0", pages.MEMORY_910B)
    told = read_all(NpuSmiSensor(0, stand_in.path))
    assert told["temperature_celsius"] == 46
    assert told["memory_total_bytes"] == 65536 * MIB
    assert (told["power_watts"], told["rated_frequency_mhz"], told["frequency_mhz"]) == (223.8, 1800, 800)
    assert (told["memory_temperature_celsius"], told["memory_bandwidth_percent"]) == (61, 37)
    assert "card_power_watts" not in told


def test_a_310b_board_in_alarm_without_power_is_read(tmp_path: Path) -> None:
    stand_in = StandInTool(tmp_path / "tool")
    stand_in.answer("info", layout_a([pages.B310_ORANGE_PI]))
    stand_in.answer("info -t common -i 0", pages.COMMON_310B)
    stand_in.answer("info -t health -i 0 -c 0", pages.HEALTH_ALARM)
    told = read_all(NpuSmiSensor(0, stand_in.path))
    assert (told["temperature_celsius"], told["health"]) == (65, "alarm")
    assert told["error_codes"] == "80E20207 80DE0207"
    assert not {"power_watts", "card_power_watts", "frequency_mhz", "board_temperature_celsius"} & told.keys()


def test_a_temperature_the_table_lacks_comes_from_its_page(tmp_path: Path) -> None:
    stand_in = StandInTool(tmp_path / "tool")
    missing = Chip(0, "910B3", "UNKNOWN", "-", "NA", ("0", "0"), 0, "NA", "0", ("0", "0"), hbm=("1", "65536"))
    stand_in.answer("info", layout_b([missing]))
    stand_in.answer("info -t temp -i 0 -c 0", pages.TEMP_SERVER)
    stand_in.answer("info -t power -i 0 -c 0", pages.POWER_910B)
    told = read_all(NpuSmiSensor(0, stand_in.path), reads=8)
    assert (told["temperature_celsius"], told["board_temperature_celsius"], told["power_watts"]) == (46, 39, 93.4)
    assert "health" not in told


def test_a_device_that_is_not_there_is_told_with_those_that_are(duo: StandInTool) -> None:
    shown = r"no device 5; it shows 0 \(NPU 2 chip 0, 310P3\), 1 \(NPU 2 chip 1, 310P3\)"
    with pytest.raises(SensorError, match=shown):
        NpuSmiSensor(5, duo.path).read()


def test_two_chips_of_which_none_is_named_are_nobodys(tmp_path: Path) -> None:
    stand_in = StandInTool(tmp_path / "tool")
    stand_in.answer("info", layout_b([pages.B910_IDLE, pages.B910_BUSY]))
    with pytest.raises(SensorError, match="does not tell which is which"):
        NpuSmiSensor(0, stand_in.path).read()
    stand_in.answer("info", layout_b([pages.B910_BUSY]))
    assert _fresh(stand_in, tmp_path, 0).read()["temperature_celsius"] == 46, "of one there is no doubt"


def _fresh(stand_in: StandInTool, folder: Path, index: int) -> NpuSmiSensor:
    """A sensor that shares no cache with an earlier one."""
    link = folder / f"npu-smi-{time.monotonic_ns()}"
    link.symlink_to(stand_in.path)
    return NpuSmiSensor(index, link)


def test_the_dies_of_an_a3_go_by_the_mapping_before_their_physical_ids(tmp_path: Path) -> None:
    stand_in = StandInTool(tmp_path / "tool")
    dies = [pages.A3_DIES[0], pages.A3_DIES[1]]
    shown = layout_b(dies, physical_ids=True)
    stand_in.answer("info", shown.replace("| 0     0 ", "| 0     4 ").replace("| 1     1 ", "| 1     5 "))
    stand_in.answer("info -m", pages.MAPPING_A3)
    assert NpuSmiSensor(1, stand_in.path).read()["memory_used_bytes"] == 2880 * MIB
    stand_in.answer("info -m", "nonsense\n")
    assert _fresh(stand_in, tmp_path, 5).read()["memory_used_bytes"] == 2880 * MIB


@pytest.mark.parametrize(
    ("text", "unusable", "expected"),
    [
        (pages.NOT_INITIALISED, True, "-8005: the driver does not answer"),
        (pages.HELD_ELSEWHERE, True, "-8020: the device is held by another container"),
        (pages.NO_DRIVER, True, "davinci_manager"),
        (pages.NO_CARD, True, "no NPU is visible from here"),
        ("Segmentation fault\n", False, "no table that is known"),
        ("dcmi_get_card_list failed. ret is -8006\n", False, "-8006: the driver timed out"),
    ],
)
def test_failure_texts_in_words(tmp_path: Path, text: str, unusable: bool, expected: str) -> None:
    stand_in = StandInTool(tmp_path / "tool")
    stand_in.answer("info", text, code=1)
    sensor = NpuSmiSensor(0, stand_in.path)
    with pytest.raises(SensorError, match=expected) as caught:
        sensor.read()
    assert isinstance(caught.value, SensorUnusable) == unusable
    with pytest.raises(SensorError, match=expected):
        sensor.read()
    assert len(stand_in.starts()) == 1, "what failed a moment ago is not tried again at once"


def test_a_page_a_chip_does_not_support_is_asked_for_once(duo: StandInTool) -> None:
    sensor = NpuSmiSensor(0, duo.path)
    read_all(sensor, reads=5)
    sensor._due_s.clear()
    read_all(sensor, reads=5)
    assert len(duo.starts("info -t power -i 2 -c 0")) == 1


def test_a_missing_tool_is_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SensorUnusable, match="cannot be started: No such file"):
        NpuSmiSensor(0, tmp_path / "gone").read()
    monkeypatch.setattr(tool_module, "_NPU_SMI_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SensorUnusable, match=r"not found .* --sensor npu-smi=PATH"):
        NpuSmiSensor(0).read()


def test_a_hung_tool_is_killed_with_all_it_started(duo: StandInTool) -> None:
    duo.hang()
    sensor = NpuSmiSensor(0, duo.path, timeout_s=0.3)
    started, before = time.monotonic(), descendants()
    with pytest.raises(SensorError, match=r"npu-smi info gave no answer in 0\.3 s and was killed"):
        sensor.read()
    assert time.monotonic() - started < 2
    assert descendants() <= before
    with pytest.raises(SensorError, match="was killed"):
        sensor.read()
    assert len(duo.starts()) == 1, "after a hang the next start waits"
    duo.hang(False)
    until("it is read again", lambda: recovered(sensor), 10, 0.1)


def recovered(sensor: NpuSmiSensor) -> bool:
    try:
        return sensor.read()["temperature_celsius"] == 45
    except SensorError:
        return False


def descendants() -> set[psutil.Process]:
    """What this process and other tests' services have running."""
    found = psutil.Process().children(recursive=True)
    return {child for child in found if child.is_running() and child.status() != psutil.STATUS_ZOMBIE}


def test_a_tool_that_cannot_be_killed_is_never_joined_by_another(
    duo: StandInTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo.hang()
    kill = tool_module._kill_session
    monkeypatch.setattr(tool_module, "_kill_session", lambda session: None)
    monkeypatch.setattr(tool_module, "_REAP_S", 0.05)
    runner = ToolRunner(duo.path)
    with pytest.raises(ToolError, match="hangs and cannot be killed"):
        runner.run(("info",), 0.1)
    with pytest.raises(ToolError, match=r"busy|cannot be killed"):
        runner.run(("info",), 0.1)
    with pytest.raises(ToolError, match="busy"):
        ToolRunner(duo.path).run(("info",), 0.1)  # as another process would
    assert len(duo.starts()) == 1
    kill(duo.pids()[0])
    duo.hang(False)
    assert until("its place is free", lambda: runs(runner), 5).code == 0


def runs(runner: ToolRunner) -> tool_module.ToolOutput | None:
    try:
        return runner.run(("info",), 1.0)
    except ToolError:
        return None


CHILD = """
import sys, time
from pathlib import Path
from coldplate_governor.sensors.npu_smi import NpuSmiSensor
sensor = NpuSmiSensor(int(sys.argv[2]), Path(sys.argv[1]))
for _ in range(int(sys.argv[3])):
    print(sensor.read()["temperature_celsius"], flush=True)
    time.sleep(0.2)
"""


def test_processes_share_one_run(duo: StandInTool) -> None:
    duo.slow(0.05)
    started = time.monotonic()
    commands = [[sys.executable, "-c", CHILD, str(duo.path), str(index), "10"] for index in (0, 1, 0, 1)]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    outputs = [reader.communicate(timeout=60)[0].split() for reader in readers]
    elapsed = time.monotonic() - started
    assert outputs == [["45.0"] * 10, ["47.0"] * 10] * 2
    assert len(duo.starts("info")) <= elapsed / 0.8 + 1, "one poller, however many read"
    assert not duo.overlapped


def test_two_runs_never_overlap(duo: StandInTool) -> None:
    duo.slow(0.1)
    # Each runner opens the lock for itself, as processes would.
    readers = [threading.Thread(target=lambda: ToolRunner(duo.path).run(("info",), 4.0)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(duo.starts()) == 4
    assert not duo.overlapped


ORPHAN = """
import sys
from pathlib import Path
from coldplate_governor.sensors.tool import ToolRunner
ToolRunner(Path(sys.argv[1])).run(("info",), 600)
"""


def test_what_a_killed_process_left_running_is_ended_by_the_next(duo: StandInTool) -> None:
    duo.hang()
    first = subprocess.Popen([sys.executable, "-c", ORPHAN, str(duo.path)])
    until("the tool hangs", duo.pids, 20)
    left = until("its own child", lambda: psutil.Process(duo.pids()[0]).children(), 20)[0]
    first.send_signal(signal.SIGKILL)
    first.wait()
    until("the tool has ended with its starter", lambda: not duo.alive(), 10)
    duo.hang(False)
    assert ToolRunner(duo.path).run(("info",), 1.0).code == 0
    until("what the tool had started is gone", lambda: not is_alive(left.pid), 10)


def test_a_damaged_cache_costs_a_run_and_no_more(duo: StandInTool, tmp_path: Path) -> None:
    runner = ToolRunner(duo.path, tmp_path / "cache")
    runner.cached(("info",), 60, 5)
    (place,) = (tmp_path / "cache").glob("*.json")
    for text in ("", "[]", "{", '{"boot": "other", "entry": {}}', place.read_text().replace('"at_s"', '"at"')):
        place.write_text(text)
        assert ToolRunner(duo.path, tmp_path / "cache").cached(("info",), 60, 5).code == 0
    assert len(duo.starts()) == 6
    assert ToolRunner(duo.path, tmp_path / "cache").cached(("info",), 60, 5).code == 0
    assert len(duo.starts()) == 6


def test_without_a_folder_it_still_runs(duo: StandInTool, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    runner = ToolRunner(duo.path, tmp_path / "file" / "cache")
    assert runner.cached(("info",), 60, 5).code == 0
    assert runner.cached(("info",), 60, 5).code == 0
    assert len(duo.starts()) == 1


def test_a_tool_that_never_stops_printing_is_cut_off(tmp_path: Path) -> None:
    endless = tmp_path / "npu-smi"
    endless.write_text("#!/bin/sh\nwhile :; do echo '| 0 310P3 | OK | NA 45 0 / 0 |'; done\n")
    endless.chmod(0o755)
    started, before = time.monotonic(), descendants()
    assert len(ToolRunner(endless).run(("info",), 5).text) < 3 << 20
    assert time.monotonic() - started < 5
    assert descendants() <= before
