"""Keeping one sensor agent alive: started, read without ever waiting for it, killed when silent, started again.

At most one process of an agent is alive. One that does not die when killed (stuck in the kernel) is abandoned: the
device goes without readings, and no second one is started beside it until it is gone.
"""

import json
import os
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import structlog

from coldplate.clock import Clock

_MAX_LINE_BYTES = 64 * 1024
_MAX_WAITING = 256
_UNKILLABLE_AFTER_S = 5.0
_STEADY_AFTER_S = 30.0
_BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of an agent, with the moment it arrived."""

    sensor: str
    readings: dict[str, Any]
    problem: str | None
    at_s: float


@dataclass(slots=True)
class _Process:
    popen: subprocess.Popen[bytes]
    reader: threading.Thread
    started_s: float
    heard_s: float
    killed_s: float | None = None
    abandoned: bool = False


@dataclass(slots=True)
class SensorAgent:
    """The agent of ``device``. Call everything from one thread: the kernel ends the child when that thread ends."""

    device: str
    sensors: tuple[str, ...]
    clock: Clock
    interval_s: float = 1.0
    deadline_s: float = 5.0
    restarts: int = 0
    first_sample: threading.Event = field(default_factory=threading.Event)
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
            self._bury(process, now, code)
        elif process.killed_s is None and now - process.heard_s > self.deadline_s:
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

    def close(self, timeout_s: float = 2.0) -> None:
        """End the process; waits at most ``timeout_s`` for it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.popen.kill()
        try:
            process.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            log.error("sensor agent does not end", device=self.device, pid=process.popen.pid)
            return
        process.reader.join(timeout_s)
        _close_pipes(process.popen)

    def _start(self, now: float) -> None:
        flags = [part for sensor in self.sensors for part in ("--sensor", sensor)]
        command = [
            *(sys.executable, "-m", "coldplate_governor.sense", "--device", self.device, *flags),
            *("--interval-s", str(self.interval_s), "--follow-parent", str(os.getpid())),
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
            process.heard_s = sample.at_s
            self._waiting.append(sample)
            self.first_sample.set()

    def _bury(self, process: _Process, now: float, code: int) -> None:
        process.reader.join(0.1)
        _close_pipes(process.popen)
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


def parse_line(line: bytes, at_s: float) -> Sample | None:
    """A sample from one line of an agent, or None when it is not one."""
    try:
        message = json.loads(line)
        sensor, readings, problem = message["sensor"], message["readings"], message.get("problem")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(sensor, str) or not isinstance(readings, dict):
        return None
    return Sample(sensor, readings, problem if isinstance(problem, str) else None, at_s)


def _close_pipes(popen: subprocess.Popen[bytes]) -> None:
    for pipe in (popen.stdin, popen.stdout):
        if pipe is not None:
            pipe.close()
