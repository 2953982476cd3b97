"""Sensor agents as processes: what they say, and what becomes of one that hangs, or cannot even be killed."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from coldplate.clock import ManualClock, MonotonicClock
from coldplate_governor.agents import Sample, SensorAgent, SensorAgents, parse_line
from coldplate_governor.device_log import DeviceLog
from coldplate_governor.sensors.device import DeviceReadings
from support.npu_smi_pages import duo_tool, is_alive
from support.processes import until


def line(**changes: object) -> bytes:
    message = {"sensor": "a", "at_s": 1.0, "age_s": 0.5, "readings": {"x": 1}, "problem": None} | changes
    return json.dumps(message).encode()


@pytest.mark.parametrize(
    ("age", "measured_s"),
    [(0.5, 99.5), (0, 100), (-1e9, 100), (1e300, -500), (10**400, -500), (True, 100), ("old", 100), (None, 100)],
)
def test_an_age_only_makes_a_sample_older(age: object, measured_s: float) -> None:
    sample = parse_line(line(age_s=age), 100.0)
    assert sample is not None
    assert sample.at_s == measured_s


def test_an_agents_own_clock_is_not_believed() -> None:
    for told in (0.0, -1e12, 1e12, None, "noon"):
        sample = parse_line(line(at_s=told), 100.0)
        assert sample is not None
        assert sample.at_s == 99.5


ANY_JSON = st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5).map(
    lambda value: json.dumps(value).encode()
)


@given(st.binary(max_size=200) | ANY_JSON)
def test_no_line_breaks_the_reader(raw: bytes) -> None:
    sample = parse_line(raw, 1.0)
    assert sample is None or isinstance(sample, Sample)


def test_a_line_that_is_no_sample_is_none() -> None:
    assert parse_line(line(readings=[1]), 1.0) is None
    assert parse_line(line(sensor=7), 1.0) is None
    sample = parse_line(line(unusable=True, problem="gone"), 1.0)
    assert sample == Sample("a", {"x": 1}, "gone", 0.5, unusable=True)


def hung_hwmon(folder: Path) -> str:
    """A sensor whose file never answers."""
    hwmon = folder / "class" / "hwmon" / "hwmon0"
    hwmon.mkdir(parents=True)
    (hwmon / "name").write_text("coretemp")
    os.mkfifo(hwmon / "temp1_input")
    return f"hwmon={folder}/class"


class Unkillable(subprocess.Popen[bytes]):
    """A process that no signal reaches, as one that hangs in the kernel."""

    def kill(self) -> None:
        pass

    def terminate(self) -> None:
        pass


@pytest.fixture
def running() -> Iterator[list[int]]:
    """Ids of processes that are ended after the test, whatever became of it."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if psutil.pid_exists(pid):
            os.kill(pid, 9)


def test_a_reader_that_cannot_be_killed_is_left_alone_and_never_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: list[int]
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Unkillable)
    clock = ManualClock(100.0)
    agent = SensorAgent("cpu", (hung_hwmon(tmp_path),), clock)
    with structlog.testing.capture_logs() as logs:
        agent.supervise()
        first = agent.pid
        assert first is not None
        running.append(first)
        started = time.monotonic()
        for _ in range(60):
            clock.advance(1.0)
            agent.supervise()
            assert agent.pid == first
        assert time.monotonic() - started < 1, "the loop waits for nothing"
        assert [entry["event"] for entry in logs] == [
            "sensor agent is silent, killed",
            "sensor agent cannot be killed: its sensors stay lost until it ends",
        ]
        assert psutil.pid_exists(first)
        os.kill(first, 9)
        until("it is buried at last", lambda: supervised(agent), 10)
        clock.advance(1.0)
        agent.supervise()
    second = agent.pid
    assert second not in (None, first)
    running.append(second or 0)
    assert agent.restarts == 1
    monkeypatch.undo()
    os.kill(second or 0, 9)
    agent.close()


def supervised(agent: SensorAgent) -> bool | None:
    agent.supervise()
    return True if agent.pid is None else None


def test_closing_waits_for_no_agent_longer_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: list[int]
) -> None:
    clock = MonotonicClock()
    agent = SensorAgent("cpu", (hung_hwmon(tmp_path),), clock)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", Unkillable)
        agent.supervise()
    assert agent._process is not None
    popen = agent._process.popen
    running.append(popen.pid)
    started = clock.now()
    agent.close(timeout_s=0.3)
    assert clock.now() - started < 2
    os.kill(popen.pid, 9)
    popen.communicate()


def test_an_agent_that_is_closed_takes_its_hung_tool_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    tool = duo_tool(tmp_path / "tool")
    tool.hang()
    devices = SensorAgents("npu:0", [(f"npu-smi={tool.path}",)], MonotonicClock(), deadline_s=60)
    devices.supervise()
    until("the tool hangs", tool.pids, 20)
    left = until("what the tool has started", lambda: psutil.Process(tool.pids()[0]).children(), 20)
    devices.close()
    until("all of it is gone", lambda: not tool.alive() and not is_alive(left[0].pid), 10)


def test_samples_of_all_agents_come_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    tool = duo_tool(tmp_path / "tool")
    both = SensorAgents("npu:1", [(f"npu-smi={tool.path}",), ("dcmi",)], MonotonicClock(), interval_s=0.2)
    try:
        both.supervise()
        both.wait_first_sample(20)
        samples = both.take()
    finally:
        both.close()
    assert [sample.at_s for sample in samples] == sorted(sample.at_s for sample in samples)
    told = {sample.sensor: sample for sample in samples}
    assert told["npu-smi"].readings["temperature_celsius"] == 47
    assert told["dcmi"].unusable
    assert "libdcmi.so not found" in (told["dcmi"].problem or "")
    assert sum(sample.sensor == "npu-smi" for sample in samples) >= 2, "heard twice before it counts as heard"


def sample(problem: str | None, unusable: bool = False, sensor: str = "npu-smi") -> Sample:
    return Sample(sensor, {}, problem, 0.0, unusable)


def told(act: Callable[[DeviceLog], object]) -> list[dict[str, Any]]:
    with structlog.testing.capture_logs() as logs:
        act(DeviceLog("npu:0"))
    return [dict(entry) for entry in logs]


def test_the_log_tells_of_a_sensor_once_when_it_begins_and_once_when_it_ends() -> None:
    def run(log: DeviceLog) -> None:
        for second in range(20):
            log.samples([sample(f"-8020: held, {second}", unusable=True), sample("late", sensor="dcmi")], {})
        log.samples([sample(None), sample(None, sensor="dcmi")], {"npu-smi.power_watts": "0 W stands for no reading"})
        log.samples([], {"npu-smi.power_watts": "0 W stands for no reading"})

    entries = told(run)
    assert [(entry["event"], entry["sensor"]) for entry in entries] == [
        ("sensor cannot be used here", "npu-smi"),
        ("sensor problem", "dcmi"),
        ("sensor problem", "npu-smi.power_watts"),
        ("sensor well again", "dcmi"),
        ("sensor well again", "npu-smi"),
    ]
    assert "safe limits" in entries[0]["do"]


def test_the_log_tells_of_lost_readings_faults_and_suspicion() -> None:
    def run(log: DeviceLog) -> None:
        words = {"error_codes": "80E0020B"}
        bad = DeviceReadings(lost=("a.temperature_celsius",), words=words, suspect="40 °C for 30 s")
        for readings in (DeviceReadings(), bad, bad, DeviceReadings()):
            log.readings(readings)

    entries = told(run)
    assert [entry["event"] for entry in entries] == [
        "readings lost",
        "the device reports a fault",
        "the temperature does not fit the device's model",
        "readings back",
        "the device's fault is over",
    ]
    assert entries[1]["fault"] == "0x80E0020B HBM at a fatal temperature: stop the NPU and look at its cooling"
