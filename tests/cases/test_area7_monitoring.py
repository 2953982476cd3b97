"""Area 7: what is measured, where it is measured wrongly elsewhere, and what a broken tool must not do.

N4 and N6 as far as they are about a single reading, and N10 with made-up cgroups, are in tests/governor/test_sensors.py
and test_npu_smi_text.py, and in tests/engine/test_threads.py.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from coldplate.v1 import device_pb2
from governor.fake_control import FakeControl
from support import case_models, modelled, processes
from support.case_models import alphabet_answer
from support.client import Alive, StreamCall, request, status, unary
from support.metrics import scrape, total
from support.npu_smi_pages import StandInTool, duo_tool
from support.processes import Process, Stack, governor, new_folder, until

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture(scope="module")
def watched() -> Iterator[Stack]:
    """A service for governors to watch; each test ends its own."""
    with Stack({"alphabet": case_models.alphabet()}, engine_args=["kv-cache-tokens=1024"]) as stack:
        yield stack


@pytest.fixture
def watched_alive(watched: Stack) -> Iterator[None]:
    yield
    assert unary(watched, request("hello", max_tokens=4)).text == alphabet_answer(5, 4)


def container(usage_bytes: int, file_cache_bytes: int = 0) -> Path:
    """A version 1 control group with a limit of 1 GiB, as a container sees it."""
    folder = new_folder()
    files = {
        "memory.limit_in_bytes": f"{GIB}\n",
        "memory.usage_in_bytes": f"{usage_bytes}\n",
        "memory.stat": f"cache {file_cache_bytes}\ntotal_inactive_file {file_cache_bytes}\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def cpu_of(stack: Stack) -> device_pb2.DeviceStatus:
    return next(item for item in status(stack).devices if item.device == "cpu")


def seen_of(stack: Stack, used_bytes: int, limit: str = "") -> device_pb2.DeviceStatus:
    """The status once it shows so much memory in use and, where one is named, a limit."""

    def found() -> device_pb2.DeviceStatus | None:
        cpu = cpu_of(stack)
        limits = {field.name for field, _ in cpu.limits.ListFields()}
        return cpu if cpu.readings.memory_used_bytes == used_bytes and (not limit or limit in limits) else None

    return until(f"{used_bytes} bytes in use", found, 20)


def governed(stack: Stack, cgroup: Path) -> Process:
    """A governor whose CPU sensors are the machine's and the container's."""
    return governor(stack, "--device=cpu", "--sensor=psutil", f"--sensor=cgroup={cgroup}")


@pytest.mark.usefixtures("watched_alive")
def test_n1_a_containers_memory_counts_and_not_the_hosts(watched: Stack) -> None:
    used = int(0.97 * GIB)
    with governed(watched, container(used)):
        seen = seen_of(watched, used, "max_batch")
        assert seen.readings.memory_total_bytes == GIB
        assert seen.explanation.binding == "memory"
        until("the cap in the metrics", lambda: total(watched, "coldplate_limit", {"limit": "max_batch"}) > 0, 5)


@pytest.mark.usefixtures("watched_alive")
def test_n3_what_the_kernel_can_drop_is_not_used(watched: Stack) -> None:
    with governed(watched, container(usage_bytes=990 * MIB, file_cache_bytes=900 * MIB)):
        cpu = seen_of(watched, 90 * MIB)
        assert cpu.readings.memory_total_bytes == GIB
        assert not cpu.limits.HasField("max_batch")
        assert cpu.governor_mode == "NOMINAL"


def first_requests(process_env: dict[str, str], folder: Path, count: int = 4) -> tuple[list[Any], str]:
    """What a governor of a machine without thermometer tells in its first rounds, and its log."""
    flags = ["--device=cpu", "--sensor=psutil", f"--sensor=hwmon={folder}/no-class"]
    with (
        FakeControl(folder) as control,
        Process("coldplate-governor", [f"--control={control.address}", *flags], folder, process_env) as process,
    ):
        control.wait_for("its first rounds", lambda request: request.seq >= count, 30)
        log = process.log()
    return control.requests, log


_NONE = "import psutil\n"
_DELETED = _NONE + "if hasattr(psutil, 'sensors_temperatures'):\n    del psutil.sensors_temperatures\n"
_RAISES = (
    _NONE
    + """
def fail(fahrenheit=False):
    raise FileNotFoundError("/sys/class/hwmon/hwmon0/temp1_input")


psutil.sensors_temperatures = fail
"""
)


@pytest.mark.parametrize("patch", [_NONE, _DELETED, _RAISES], ids=["none", "deleted", "raises"])
def test_n5_without_a_thermometer_the_temperature_is_absent(patch: str) -> None:
    folder = new_folder()
    (folder / "sitecustomize.py").write_text(patch)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    requests, log = first_requests({"PYTHONPATH": path}, folder)
    for item in requests:
        assert not item.devices[0].readings.HasField("temperature_celsius")
        assert item.devices[0].mode == "NOMINAL"
    assert requests[-1].devices[0].readings.memory_total_bytes > 0, "the rest is measured"
    assert len(log.splitlines()) < 12, log


def test_n4_the_first_reading_of_the_processor_is_absent_and_not_zero() -> None:
    command = [sys.executable, "-m", "coldplate_governor.sense", "--device=cpu", "--sensor=psutil", "--interval-s=0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as agent:
        try:
            assert agent.stdout is not None
            first, second = (json.loads(agent.stdout.readline())["readings"] for _ in range(2))
        finally:
            agent.kill()
    assert first["memory_used_bytes"] > 0
    assert "utilization_percent" not in first
    assert 0 <= second["utilization_percent"] <= 100


@pytest.mark.parametrize("env", [{"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}])
def test_n10_the_threads_that_a_user_sets_are_those_that_status_shows(env: dict[str, str]) -> None:
    stack = Stack({"alphabet": case_models.alphabet()}, engine_args=["kv-cache-tokens=256"], env=env, own_threads=True)
    with stack:
        assert [device.threads for device in status(stack).devices] == [int(env["OMP_NUM_THREADS"])]


@dataclass(frozen=True, slots=True)
class Card:
    """Two modelled chips behind a server, and a governor that sees them through an npu-smi alone."""

    stack: Stack
    tool: StandInTool
    governor: Process

    def chip(self, index: int) -> device_pb2.DeviceStatus:
        return next(one for one in status(self.stack, 1.0).devices if one.device == f"npu:{index}")


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Card]:
    tool = duo_tool(tmp_path_factory.mktemp("tool") / "bin")
    model = modelled.model_folder(tmp_path_factory.mktemp("modelled"))
    with processes.board("--count=2", "--ambient-celsius=-20") as (_, address):
        workers = [f"sim:{address}#npu:{chip},modelled=qwen3-1.7b-w8a8" for chip in range(2)]
        with Stack({"demo": model}, workers=workers, server_args=["governor=optional"]) as stack:
            devices = [f"--device=npu:{chip}=310p-duo" for chip in range(2)]
            with governor(stack, *devices, f"--sensor=npu-smi={tool.path}") as process:
                yield Card(stack, tool, process)
                tool.hang(False)


@pytest.mark.slow
def test_n6_what_the_tool_does_not_show_is_absent_and_the_rest_is_right(card: Card) -> None:
    """A 310P: no HBM column, power "NA", two chips under one id."""
    until("both chips", lambda: all(card.chip(n).readings.HasField("temperature_celsius") for n in (0, 1)), 30)
    first, second = card.chip(0).readings, card.chip(1).readings
    assert (first.temperature_celsius, second.temperature_celsius) == (45, 47)
    assert (first.memory_total_bytes, second.memory_total_bytes) == (44280 * MIB, 43693 * MIB)
    assert second.utilization_percent == 12
    assert not second.HasField("power_watts"), "NA is not 0"
    assert not second.HasField("memory_temperature_celsius")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_n8_a_tool_that_hangs_stops_neither_status_nor_streams(card: Card) -> None:
    until("a temperature", lambda: card.chip(0).readings.HasField("temperature_celsius"), 30)
    call = StreamCall(card.stack, request([65, 66], max_tokens=1500, ignore_end_of_text=True)).start_reading()
    until("a stream", lambda: len(call.outcome.deltas) > 50, 20)
    card.tool.hang()
    hung_at, slowest, most_alive, stale = time.monotonic(), 0.0, 0, False
    while not stale or time.monotonic() - hung_at < 12:
        asked_at = time.monotonic()
        found = card.chip(0)
        slowest = max(slowest, time.monotonic() - asked_at)
        most_alive = max(most_alive, len(card.tool.alive()))
        stale = "npu-smi.temperature_celsius" in found.readings.lost
        assert time.monotonic() - hung_at < 60, card.governor.log_tail()
        time.sleep(0.1)
    assert slowest < 1
    assert most_alive == 1
    assert not card.chip(0).readings.HasField("temperature_celsius")
    assert card.chip(0).explanation.binding == "sensor"
    assert not [child for child in card.governor.descendants() if child.status() == psutil.STATUS_ZOMBIE]
    card.tool.hang(False)
    call.cancel()
    call.result()
    times = [at for at in call.outcome.delta_times if at < hung_at + 4]  # later a lost temperature lowers the pace
    before = max(b - a for a, b in pairwise([at for at in times if at < hung_at]))
    after = max(b - a for a, b in pairwise([at for at in times if at >= hung_at]))
    assert after < max(3 * before, 0.3)


def outcomes(stack: Stack) -> dict[str, int]:
    """Ended requests by outcome, over every model."""
    found: dict[str, int] = {}
    for (name, labels), value in scrape(stack).items():
        if name == "coldplate_requests_total":
            outcome = dict(labels)["outcome"]
            found[outcome] = found.get(outcome, 0) + int(value)
    return found


@pytest.mark.usefixtures("slow_alive")
def test_n11_every_request_is_counted_once_by_how_it_ended(slow: Stack) -> None:
    before = outcomes(slow)
    for _ in range(5):
        call = StreamCall(slow, request("x" * 10, max_tokens=200)).read_deltas(1)
        call.cancel()
        call.read_all()
    for _ in range(3):
        assert unary(slow, request("hello", max_tokens=2)).ok
    for _ in range(2):
        assert unary(slow, request("hello", max_tokens=-1)).code.name == "INVALID_ARGUMENT"
    assert unary(slow, request("x" * 10, max_tokens=200), timeout_s=0.3).code.name == "DEADLINE_EXCEEDED"
    expected = {"cancelled": 5, "ok": 3, "invalid": 2, "deadline": 1}

    def gained() -> dict[str, int]:
        now = outcomes(slow)
        return {name: count - before.get(name, 0) for name, count in now.items() if count != before.get(name, 0)}

    until("every count", lambda: gained() == expected, 5)
    until("nothing runs any more", lambda: total(slow, "coldplate_num_requests_running") == 0, 5)
    for name, labels in scrape(slow):
        if name == "coldplate_requests_total":
            assert {label for label, _ in labels} == {"model", "outcome"}, "no label of a single request"


def test_alive_after_all_of_it(watched: Stack) -> None:
    check = Alive(watched, "alphabet")
    check.check()
