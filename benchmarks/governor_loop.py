"""What the governor's loop costs, what it keeps in memory, and how well it keeps its second:
``python benchmarks/governor_loop.py``.

- cost: processor time of a round with every device reporting anew, at 1, 4 and 16 devices, messages to and from the
  server included;
- memory: what an hour of virtual rounds leaves behind, and the size of a real governor's process;
- period: a real governor, seen from the server's side, first alone and then with an ``npu-smi`` that never answers, as
  sensor and as frequency lever.

Exit code 1 when a round costs over 2 ms at 16 devices, the period strays over 100 ms at p99, a process is over 100 MB
or an hour leaves over 1 MB.
"""

import argparse
import gc
import json
import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import psutil

from coldplate.clock import Clock, ManualClock
from coldplate.device_id import DeviceId
from coldplate.profile import load_profile
from coldplate.v1 import control_pb2, control_pb2_grpc, device_pb2
from coldplate_governor.agents import Sample
from coldplate_governor.control_link import ControlLink, Directive
from coldplate_governor.feedback import DeviceFeedback, feedback_of
from coldplate_governor.loop import DeviceGovernor, GovernorSnapshot, HeatsinkGovernor, run
from coldplate_governor.settings import GovernedDevice

DEVICES = (1, 4, 16)
COST_MS, JITTER_MS, PROCESS_MB, HOUR_MB = 2.0, 100.0, 100.0, 1.0
_GB = 2.0**30


class PlayedAgent:
    """A sensor agent that tells something new each round: a chip near its target, now warmer, now cooler."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self.restarts = 0
        self._clock = clock
        self._random = random.Random(seed)
        self._celsius = 70.0
        self._memory_gb = 18.0

    def supervise(self) -> None: ...

    def wait_first_sample(self, timeout_s: float) -> None: ...

    def take(self) -> list[Sample]:
        noise = self._random
        self._celsius = min(80.0, max(60.0, self._celsius + noise.uniform(-0.5, 0.5)))
        self._memory_gb = min(20.0, max(15.0, self._memory_gb + noise.uniform(-0.05, 0.05)))
        readings = {
            "temperature_celsius": round(self._celsius),
            "power_watts": noise.uniform(20, 70),
            "utilization_percent": noise.uniform(0, 100),
            "memory_used_bytes": self._memory_gb * _GB,
            "memory_total_bytes": 21.5 * _GB,
            "frequency_mhz": 1080,
            "rated_frequency_mhz": 1080,
        }
        return [Sample("played", dict(readings), None, self._clock.now())]


class PlayedLink:
    """The server's part: every directive becomes a message and every answer comes from one."""

    def __init__(self, seed: int = 0) -> None:
        self.bytes = 0
        self._messages = ControlLink("unix:/nowhere", "governor", epoch=1)  # never called: only writes the messages
        self._random = random.Random(seed)

    def apply(self, directives: Sequence[Directive]) -> dict[str, DeviceFeedback] | None:
        self.bytes += len(self._messages.request(directives).SerializeToString())
        reply = control_pb2.ApplyLimitsResponse(devices=[self._status(item.device) for item in directives])
        back = control_pb2.ApplyLimitsResponse.FromString(reply.SerializeToString())
        return feedback_of(back.devices, {item.device: item.decision.limits.duty for item in directives})

    def close(self) -> None:
        self._messages.close()

    def _status(self, device: str) -> device_pb2.DeviceStatus:
        return device_pb2.DeviceStatus(
            device=device,
            worker=device,
            model="m",
            state=device_pb2.DEVICE_STATE_SERVING,
            running=self._random.randint(0, 32),
            queued=self._random.randint(0, 8),
            busy_share=self._random.random(),
            tokens_per_second=self._random.uniform(0, 500),
            levers=["duty", "max_batch", "max_prefill_tokens", "max_new_tokens", "admit"],
        )


def played_heatsinks(devices: int, clock: Clock) -> list[HeatsinkGovernor]:
    """Chips in pairs on a heatsink, as on a 300I Duo."""
    profile = load_profile("310p-duo")
    ids = [DeviceId("npu", index) for index in range(devices)]
    agents = [PlayedAgent(index, clock) for index in range(devices)]
    made = [
        DeviceGovernor(GovernedDevice(device, profile, ()), agent)  # type: ignore[arg-type]
        for device, agent in zip(ids, agents, strict=True)
    ]
    return [HeatsinkGovernor(made[at : at + 2]) for at in range(0, devices, 2)]


class Rounds:
    """The loop in virtual time: a StopRequest that lets a second pass instead of waiting, and stops after ``count``."""

    def __init__(self, devices: int, count: int) -> None:
        self.clock = ManualClock()
        self.link = PlayedLink()
        self.snapshot = GovernorSnapshot()
        self.left = count
        self.cost_s: list[float] = []
        self._opened = self.link
        self._heatsinks = played_heatsinks(devices, self.clock)
        self._mark = time.thread_time()

    def run(self) -> None:
        try:
            run(self._heatsinks, self.link, self.clock, self, self.snapshot, sleep=self)  # type: ignore[arg-type]
        finally:
            self._opened.close()

    def slept_s(self) -> float:
        return 0.0

    def is_set(self) -> bool:
        self._mark = time.thread_time()
        return self.left <= 0

    def wait(self, timeout_s: float) -> bool:
        """The end of a round."""
        self.cost_s.append(time.thread_time() - self._mark)
        self.left -= 1
        self.clock.advance(max(0.0, timeout_s))
        return False


def hour_mb(devices: int) -> float:
    """Megabytes that an hour of rounds leaves behind, after ten minutes to settle."""
    sizes: list[int] = []

    class Watched(Rounds):
        def wait(self, timeout_s: float) -> bool:
            if self.left in (3601, 1):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
            return super().wait(timeout_s)

    tracemalloc.start()
    try:
        rounds = Watched(devices, 600 + 3601)
        rounds.run()
    finally:
        tracemalloc.stop()
    return (sizes[1] - sizes[0]) / 2**20


class _Control(control_pb2_grpc.ControlServiceServicer):
    def __init__(self) -> None:
        self.arrived_s: list[float] = []

    def ApplyLimits(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.arrived_s.append(time.monotonic())
        return control_pb2.ApplyLimitsResponse()


@contextmanager
def real_governor(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], _Control]]:
    """A governor process and what its calls arrive at."""
    control = _Control()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    control_pb2_grpc.add_ControlServiceServicer_to_server(control, server)
    address = f"unix:{folder}/control.sock"
    server.add_insecure_port(address)
    server.start()
    command = [sys.executable, "-m", "coldplate_governor.main", f"--control={address}", "--log-level=error", *flags]
    process = subprocess.Popen(command, env={**os.environ, "XDG_RUNTIME_DIR": str(folder)})
    try:
        yield process, control
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        server.stop(0).wait(5)


def period(seconds: float, folder: Path, *flags: str) -> dict[str, float]:
    """How far the period strays from a second, in ms, and the process's size in MB."""
    with real_governor(folder, *flags) as (process, control):
        time.sleep(3)
        del control.arrived_s[:]
        time.sleep(seconds)
        rss = psutil.Process(process.pid).memory_info().rss / 2**20
        strays = sorted(abs(later - earlier - 1) * 1000 for earlier, later in pairwise(control.arrived_s))
    return {"p50_ms": percentile(strays, 0.5), "p99_ms": percentile(strays, 0.99), "most_ms": strays[-1], "rss_mb": rss}


def hung_tool(folder: Path) -> Path:
    tool = folder / "npu-smi"
    tool.write_text("#!/bin/sh\nexec sleep 100000\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return tool


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description="The governor's loop: cost, memory, period.")
    parser.add_argument("--rounds", type=int, default=2000, help="rounds for the cost (default: 2000)")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each real governor (default: 120)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    args = parser.parse_args()
    figures: dict[str, Any] = {"cost": {}, "period": {}}
    print("devices   round p50 ms   p99 ms   bytes a round")
    for devices in DEVICES:
        rounds = Rounds(devices, args.rounds)
        rounds.run()
        cost = [1000 * seconds for seconds in rounds.cost_s[args.rounds // 10 :]]
        found = {"p50_ms": percentile(cost, 0.5), "p99_ms": percentile(cost, 0.99)}
        figures["cost"][devices] = found
        size = rounds.link.bytes / args.rounds
        print(f"{devices:>7} {found['p50_ms']:>14.3f} {found['p99_ms']:>8.3f} {size:>15.0f}", flush=True)
    figures["hour_mb"] = hour_mb(DEVICES[-1])
    print(f"an hour of {DEVICES[-1]} devices leaves {figures['hour_mb']:+.3f} MB", flush=True)
    print("real governor          stray p50 ms   p99 ms   most ms   size MB")
    for name, extra in (("alone", ()), ("npu-smi hangs", ("npu-smi",))):
        with tempfile.TemporaryDirectory(prefix="coldplate-loop-") as place:
            folder = Path(place)
            flags = [f"--frequency-state={folder}/state", "--device=cpu"]
            if extra:
                tool = hung_tool(folder)
                flags += ["--device=npu:0", f"--sensor=npu-smi={tool}", f"--frequency=work-level={tool}"]
            found = figures["period"][name] = period(args.seconds, folder, *flags)
        strays = f"{found['p50_ms']:>14.1f} {found['p99_ms']:>8.1f} {found['most_ms']:>9.1f}"
        print(f"{name:<20} {strays} {found['rss_mb']:>9.1f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    if said := failures(figures):
        print("over: " + "; ".join(said))
        sys.exit(1)


def failures(figures: dict[str, Any]) -> list[str]:
    """What is over its bound, in words."""
    found = []
    if (cost := figures["cost"][DEVICES[-1]]["p50_ms"]) > COST_MS:
        found.append(f"a round of {DEVICES[-1]} devices costs {cost:.2f} ms")
    if figures["hour_mb"] > HOUR_MB:
        found.append(f"an hour leaves {figures['hour_mb']:.2f} MB")
    for name, period_of in figures["period"].items():
        if period_of["p99_ms"] > JITTER_MS:
            found.append(f"{name}: the period strays {period_of['p99_ms']:.0f} ms at p99")
        if period_of["rss_mb"] > PROCESS_MB:
            found.append(f"{name}: the process has {period_of['rss_mb']:.0f} MB")
    return found


if __name__ == "__main__":
    main()
