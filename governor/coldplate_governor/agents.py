"""Keeping one sensor agent alive: started, read without ever waiting for it, killed when silent, started again.

At most one process of an agent is alive. One that does not die when killed (stuck in the kernel) is abandoned: the
device goes without readings, and no second one is started beside it until it is gone.
"""

import json
import os
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from coldplate.clock import Clock

_MAX_LINE_BYTES = 64 * 1024
_MAX_WAITING = 256
_UNKILLABLE_AFTER_S = 5.0
_STEADY_AFTER_S = 30.0
_GRACE_S = 0.5
_READ_OUT_S = 2.0
_TOOL_SHARE = 0.5  # of the deadline: a tool that hangs is given up well before its agent would be
_MAX_AGE_S = 600.0
_BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of an agent. ``at_s`` is when it was measured, on this process's monotonic clock; ``unusable`` says that
    the sensor cannot work where the agent runs."""

    sensor: str
    readings: dict[str, Any]
    problem: str | None
    at_s: float
    unusable: bool = False


@dataclass(slots=True)
class _Process:
    popen: subprocess.Popen[bytes]
    reader: threading.Thread
    started_s: float
    heard_s: float
    killed_s: float | None = None
    ended_s: float | None = None
    abandoned: bool = False


@dataclass(slots=True)
class SensorAgent:
    """An agent of ``device``. Call everything from one thread: the kernel ends the child when that thread ends.

    A process that is late with its next sample by ``deadline_s`` is replaced.
    """

    device: str
    sensors: tuple[str, ...]
    clock: Clock
    interval_s: float = 1.0
    deadline_s: float = 5.0
    restarts: int = 0
    first_sample: threading.Event = field(default_factory=threading.Event)
    """Set once every sensor has been heard twice: before that no temperature can be believed."""
    _heard: Counter[str] = field(default_factory=Counter)
    _process: _Process | None = None
    _failures: int = 0
    _next_start_s: float = float("-inf")
    _waiting: deque[Sample] = field(default_factory=lambda: deque(maxlen=_MAX_WAITING))

    @property
    def pid(self) -> int | None:
        """The process's id while one is alive."""
        return self._process.popen.pid if self._process else None

    def supervise(self) -> None:
        """Start, kill or bury the process as is due. Never blocks."""
        now = self.clock.now()
        process = self._process
        if process is None:
            if now >= self._next_start_s:
                self._start(now)
            return
        code = process.popen.poll()
        if code is not None:
            process.ended_s = now if process.ended_s is None else process.ended_s
            # What it said last is still being read; that takes no time of this thread.
            if not process.reader.is_alive() or now - process.ended_s > _READ_OUT_S:
                self._bury(process, now, code)
        elif process.killed_s is None and now - process.heard_s > self.interval_s + self.deadline_s:
            log.warning("sensor agent is silent, killed", device=self.device, silent_s=round(now - process.heard_s, 1))
            process.popen.kill()
            process.killed_s = now
        elif process.killed_s is not None and not process.abandoned and now - process.killed_s > _UNKILLABLE_AFTER_S:
            process.abandoned = True
            log.error(
                "sensor agent cannot be killed: its sensors stay lost until it ends", device=self.device, pid=self.pid
            )

    def take(self) -> list[Sample]:
        """The samples that have come since the last call, oldest first."""
        samples = []
        while self._waiting:
            samples.append(self._waiting.popleft())
        return samples

    def end(self) -> None:
        """Ask the process to end, and the tool it may be running with it. Does not wait."""
        if self._process is not None:
            self._process.popen.terminate()

    def close(self, timeout_s: float = 2.0) -> None:
        """End the process; waits at most ``timeout_s`` for it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.popen.terminate()
        try:
            process.popen.wait(min(_GRACE_S, timeout_s))
        except subprocess.TimeoutExpired:
            process.popen.kill()
        try:
            process.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            log.error("sensor agent does not end", device=self.device, pid=process.popen.pid)
            return
        process.reader.join(timeout_s)
        _close_pipes(process)

    def _start(self, now: float) -> None:
        flags = [part for sensor in self.sensors for part in ("--sensor", sensor)]
        command = [
            *(sys.executable, "-m", "coldplate_governor.sense", "--device", self.device, *flags),
            *("--interval-s", str(self.interval_s), "--follow-parent", str(os.getpid())),
            *("--timeout-s", str(round(_TOOL_SHARE * self.deadline_s, 3))),
        ]
        try:
            popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            self._failed(now, f"cannot start: {error}")
            return
        reader = threading.Thread(target=self._read, args=(popen,), name=f"samples-{self.device}", daemon=True)
        # The first line may take an interpreter's start on a loaded machine.
        self._process = _Process(popen, reader, now, now + self.deadline_s)
        reader.start()

    def _read(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdout is not None
        while line := popen.stdout.readline(_MAX_LINE_BYTES):
            sample = parse_line(line, self.clock.now())
            process = self._process
            if sample is None or process is None or process.popen is not popen:
                continue
            process.heard_s = self.clock.now()
            self._waiting.append(sample)
            self._heard[sample.sensor] += 1
            if all(self._heard[spec.partition("=")[0]] >= 2 for spec in self.sensors):
                self.first_sample.set()

    def _bury(self, process: _Process, now: float, code: int) -> None:
        _close_pipes(process)
        self._process = None
        self.restarts += 1
        if now - process.started_s > _STEADY_AFTER_S:
            self._failures = 0
        self._failed(now, f"ended with code {code}")

    def _failed(self, now: float, reason: str) -> None:
        delay = _BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)]
        self._failures += 1
        self._next_start_s = now + delay
        log.warning("sensor agent lost, starting it again", device=self.device, reason=reason, in_s=delay)


class SensorAgents:
    """All agents of one device: sensors that may hang for good have one each, so that they take no other with them."""

    def __init__(
        self,
        device: str,
        groups: Sequence[tuple[str, ...]],
        clock: Clock,
        interval_s: float = 1.0,
        deadline_s: float = 5.0,
    ) -> None:
        self._clock = clock
        self.agents = tuple(SensorAgent(device, group, clock, interval_s, deadline_s) for group in groups)

    @property
    def restarts(self) -> int:
        return sum(agent.restarts for agent in self.agents)

    def supervise(self) -> None:
        """Start, kill or bury each process as is due. Never blocks."""
        for agent in self.agents:
            agent.supervise()

    def wait_first_sample(self, timeout_s: float) -> None:
        """Wait until every sensor has been heard twice, at most ``timeout_s``."""
        due_s = self._clock.now() + timeout_s
        for agent in self.agents:
            agent.first_sample.wait(max(0.0, due_s - self._clock.now()))

    def take(self) -> list[Sample]:
        """The samples that have come since the last call, oldest first."""
        return sorted((sample for agent in self.agents for sample in agent.take()), key=lambda sample: sample.at_s)

    def end(self) -> None:
        """Ask every process to end. Does not wait."""
        for agent in self.agents:
            agent.end()

    def close(self, timeout_s: float = 2.0) -> None:
        """End the processes; waits at most ``timeout_s`` for each that does not end when asked."""
        self.end()
        for agent in self.agents:
            agent.close(timeout_s)


def parse_line(line: bytes, now_s: float) -> Sample | None:
    """A sample from one line of an agent, or None when it is not one. ``now_s`` is when it came.

    The age it tells can only make a sample older: whatever an agent's clock does, nothing is measured in the future.
    """
    try:
        message = json.loads(line)
        sensor, readings, problem = message["sensor"], message["readings"], message.get("problem")
        age_s, unusable = _age_s(message.get("age_s")), message.get("unusable") is True
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(sensor, str) or not isinstance(readings, dict):
        return None
    return Sample(sensor, readings, problem if isinstance(problem, str) else None, now_s - age_s, unusable)


def _age_s(told: object) -> float:
    """An age as an agent tells it, in seconds; 0 when it is none."""
    if isinstance(told, bool) or not isinstance(told, int | float) or not told > 0:
        return 0.0
    return float(min(_MAX_AGE_S, told))


def _close_pipes(process: _Process) -> None:
    popen = process.popen
    # A pipe that is still being read belongs to its reader.
    for pipe in (popen.stdin, None if process.reader.is_alive() else popen.stdout):
        if pipe is not None:
            pipe.close()
