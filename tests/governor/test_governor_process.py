"""The governor as a process against a recording ControlService."""

import os
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from importlib import resources
from pathlib import Path

import grpc
import psutil
import pytest

from coldplate_governor.board.client import BoardClient
from coldplate_governor.settings import GovernorSettings, governed_devices
from governor.fake_control import FakeControl, Request
from support import processes
from support.processes import Process, until


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="coldplate-gov-") as path:  # short: a socket path has 108 bytes
        yield Path(path)


def governor(control: FakeControl, folder: Path, *args: str) -> Process:
    return Process("coldplate-governor", [f"--control={control.address}", *args], folder)


def agents(process: Process) -> list[psutil.Process]:
    return [child for child in process.descendants() if "coldplate_governor.sense" in child.cmdline()]


def duty(request: Request, device: str = "npu:0") -> float:
    limits = next(item.limits for item in request.devices if item.device == device)
    return limits.duty if limits.HasField("duty") else 1.0


def test_it_applies_limits_every_second_and_leaves_nothing_behind(folder: Path) -> None:
    with FakeControl(folder, known=()) as control, governor(control, folder, "--device=cpu") as process:
        first = control.wait_for("the first call", lambda _: True)
        control.wait_for("the fourth call", lambda request: request.seq >= 4)
        assert (first.governor, first.ttl.seconds, first.seq) == ("governor", 5, 1)
        assert [request.seq for request in control.requests[:4]] == [1, 2, 3, 4]
        assert {request.epoch for request in control.requests} == {first.epoch}
        cpu = first.devices[0]
        assert (cpu.device, cpu.mode) == ("cpu", "NOMINAL")
        assert cpu.readings.memory_total_bytes > 0
        assert control.requests[3].devices[0].readings.HasField("utilization_percent")
        assert len(agents(process)) == 1
        assert process.stop() == 0  # asserts that no child is left
        assert process.log().count("the server has no such device") == 1


def test_a_restart_has_a_newer_epoch_and_takes_over(folder: Path) -> None:
    with FakeControl(folder) as control:
        with governor(control, folder, "--device=cpu") as first:
            before = control.wait_for("the first governor", lambda _: True)
            children = agents(first)
            first.signal(9)
            first.wait()
            psutil.wait_procs(children, timeout=10)
            assert not [child for child in children if child.is_running()], "its agent dies with it, even after kill -9"
        with governor(control, folder, "--device=cpu"):
            after = control.wait_for("the second governor", lambda request: request.epoch != before.epoch)
    assert after.epoch > before.epoch
    assert after.seq == 1


def test_it_waits_for_a_server_and_finds_a_restarted_one(folder: Path) -> None:
    control = FakeControl(folder)
    with governor(control, folder, "--device=cpu") as process:
        until("it says that no server answers", lambda: "no server answers" in process.log(), 20)
        with control:
            control.wait_for("the first call", lambda _: True)
        before = len(control.requests)
        until("it says so again", lambda: process.log().count("no server answers") == 2, 20)
        with control:
            control.wait_for("a call after the restart", lambda _: True, after=before)
        until("it says that limits apply", lambda: process.log().count("limits applied") == 2, 20)


def test_a_refusal_is_told_once_with_what_to_do(folder: Path) -> None:
    with FakeControl(folder) as control, governor(control, folder, "--device=cpu") as process:
        control.refuse = grpc.StatusCode.FAILED_PRECONDITION
        control.wait_for("it keeps trying", lambda request: request.seq >= 4)
        control.refuse = None
        until("it recovers", lambda: "limits applied" in process.log().split("another governor", 1)[-1], 20)
        assert process.log().count("another governor holds the lease") == 1
        assert "governor 'other' holds the lease for 4 s more" in process.log()


def test_chips_of_a_board_have_the_profile_of_their_kind() -> None:
    for chip, expected in (("310p", "310p-duo"), ("310b", "310b"), ("910b", "910b")):
        with processes.board(f"--chip={chip}", "--count=2") as (_, address):
            settings = GovernorSettings(board=address, device=["npu:0", "npu:1=310p-duo", "cpu"])
            devices = {str(item.device): item.profile.name for item in governed_devices(settings, board_chips=2)}
        assert devices == {"cpu": "cpu", "npu:0": expected, "npu:1": "310p-duo"}


def test_a_hot_board_is_throttled_and_released(folder: Path) -> None:
    with processes.board("--start-temperature-celsius=84") as (_, board), FakeControl(folder) as control:
        port = processes.free_port()
        with governor(control, folder, f"--board={board}", f"--metrics-listen=127.0.0.1:{port}") as process:
            with BoardClient(board) as client:
                load(client, control, until_duty=0.8)
                codes = {reason.code for reason in control.requests[-1].devices[1].reasons}
                assert codes & {"TEMPERATURE_NEAR_TARGET", "TEMPERATURE_ABOVE_TARGET"}
                metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
                assert 'npu_chip_info_temperature{id="0"}' in metrics
                mode = control.requests[-1].devices[1].mode
                assert mode in ("THROTTLED", "SAFE"), "it may have passed its target before the governor saw it"
                assert f'coldplate_governor_mode{{device="npu:0",mode="{mode}"}} 1.0' in metrics
                assert 'coldplate_device_temperature_celsius{device="cpu"} 0' not in metrics
                low = duty(control.requests[-1])
                cool(client, control, 65.0)
                control.wait_for(
                    "the duty rises", lambda request: duty(request) > low + 0.1, after=len(control.requests)
                )
            assert "limits" in process.log()


def cool(client: BoardClient, control: FakeControl, to_celsius: float) -> None:
    """Cool chip 0 no faster than a chip can: a reading that falls further at once is not believed."""
    celsius = control.requests[-1].devices[1].readings.temperature_celsius
    while celsius > to_celsius:
        celsius -= 6
        client.poke("heat", 0, celsius=celsius)
        control.wait_for(f"{celsius} °C", partial(shows_at_most, celsius + 1), after=len(control.requests))


def shows_at_most(celsius: float, request: Request) -> bool:
    readings = request.devices[1].readings
    return readings.HasField("temperature_celsius") and readings.temperature_celsius <= celsius


def load(client: BoardClient, control: FakeControl, until_duty: float) -> None:
    """Keep chip 0 busy, as a worker that obeys would, until the governor has lowered its duty."""

    def step() -> bool:
        current = duty(control.requests[-1]) if control.requests else 1.0
        client.post_step(0, 0.1 * current, 300)
        return current < until_duty

    until(f"the duty falls below {until_duty}", step, 25, every_s=0.1)


def test_a_hung_sensor_is_replaced_and_never_delays_the_loop(folder: Path) -> None:
    hwmon = folder / "class" / "hwmon" / "hwmon0"
    hwmon.mkdir(parents=True)
    (hwmon / "name").write_text("coretemp")
    os.mkfifo(hwmon / "temp1_input")  # reading it blocks for good
    flags = ("--device=cpu", f"--sensor=hwmon={folder}/class", "--sensor-deadline-s=1")
    with FakeControl(folder) as control, governor(control, folder, *flags) as process:
        control.wait_for("the first call", lambda _: True)
        first = until("an agent", lambda: agents(process), 20)[0]
        started = time.monotonic()
        calls = len(control.requests)
        until("another agent in its place", lambda: [a for a in agents(process) if a.pid != first.pid], 20)
        assert len(agents(process)) == 1
        elapsed = time.monotonic() - started
        assert len(control.requests) - calls >= elapsed - 2, "the loop kept its second"
        assert "silent, killed" in process.log()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--device=gpu"], "unknown device 'gpu'"),
        (["--device=cpu=310p-duo"], "profile '310p-duo' is for a npu"),
        (["--device=cpu=/no/p.toml"], "/no/p.toml"),
        (["--sensor=thermometer"], "unknown sensor 'thermometer'"),
        (["--frequency=npu-smi set-freq"], "there is no `npu-smi set-freq`"),
        (["--frequency=npu:0@cpufreq"], "npu:0 is not governed: add --device npu:0"),
        (["--device=npu:0", "--frequency=npu:0@cpufreq"], "it is for cpu devices"),
        (["--frequency=work-level"], "no governed device whose clock it could set"),
        (["--frequency=cpufreq", "--frequency=cpu@hook=true"], "one lever a device"),
        (["--sensor=npu:3@board=unix:/x"], "npu:3 is not governed"),
        (["--control=/no/scheme"], "expected unix:/path"),
        (["--lease-s=0.1"], "lease-s"),
        (["--metrics-listen=nowhere"], "expected HOST:PORT"),
    ],
)
def test_unusable_flags_end_it_with_code_2(flags: list[str], expected: str) -> None:
    done = processes.run("coldplate-governor", *flags)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("kp = {", "kq = {", "gains.kq is unknown"),
        ("value = 85.0", "value = -1.0", "temperature.target_celsius is -1.0"),
        ("value = 85.0", "value = 99.0", "expected below temperature."),
        ("[gains]", "[gain]", "unknown table 'gain'"),
        ('kind = "cpu"', 'kind = "npu"', "is for a npu"),
    ],
)
def test_a_profile_that_cannot_be_ends_it_with_code_2_and_the_key(
    folder: Path, old: str, new: str, expected: str
) -> None:
    text = (resources.files("coldplate") / "profiles" / "cpu.toml").read_text()
    assert old in text
    (folder / "mine.toml").write_text(text.replace(old, new, 1))
    done = processes.run("coldplate-governor", f"--device=cpu={folder}/mine.toml")
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_sensor_agent_prints_samples_and_refuses_bad_flags() -> None:
    refused = processes.run("coldplate-governor", "sense", "--device=cpu", "--sensor=board=unix:/x")
    assert refused.returncode == 2
    assert "sensor 'board' cannot watch cpu" in refused.stderr
