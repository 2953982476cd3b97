"""A spawned worker: started by a command, restarted when it dies, ended with the server."""

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable

import structlog

from coldplate.clock import Clock

log = structlog.get_logger()

EXIT_UNUSABLE = 2
_TERM_GRACE_S = 5.0
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.5, 30.0
_HEALTHY_AFTER_S = 60.0
_KEPT_LINES = 20


class WorkerProcess:
    """Keeps one worker process alive in its own process group.

    A worker that exits with ``EXIT_UNUSABLE`` cannot serve as it is configured: it is not started again, and
    ``failure`` holds the last line it wrote.
    """

    def __init__(self, name: str, command: list[str], clock: Clock, on_change: Callable[[], None]) -> None:
        self.name = name
        self.command = command
        self.restarts = 0
        self.pid: int | None = None
        self.failure: str | None = None
        self.last_exit: str | None = None
        self._clock = clock
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    async def run(self) -> None:
        """Start it and start it again, until cancelled or it proves unusable."""
        backoff = _FIRST_BACKOFF_S
        try:
            while True:
                started = self._clock.now()
                code = await self._run_once()
                if code is None:
                    return
                if code == EXIT_UNUSABLE:
                    self.failure = self._last_line() or "the worker's settings are unusable"
                    log.error("worker cannot serve", worker=self.name, detail=self.failure)
                    self._on_change()
                    return
                self.last_exit = _describe_exit(code)
                if self._clock.now() - started > _HEALTHY_AFTER_S:
                    backoff = _FIRST_BACKOFF_S
                log.error("worker ended", worker=self.name, exit=self.last_exit, restart_in_s=backoff)
                self._on_change()
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _LAST_BACKOFF_S)
                self.restarts += 1
        finally:
            await self.stop()

    async def _run_once(self) -> int | None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            self.failure = f"cannot start {self.command[0]!r}: {error.strerror}"
            log.error("worker cannot be started", worker=self.name, detail=self.failure)
            self._on_change()
            return None
        self._process, self.pid = process, process.pid
        log.info("worker started", worker=self.name, pid=process.pid)
        assert process.stderr is not None
        forward = asyncio.create_task(self._forward(process.stderr))
        try:
            return await process.wait()
        finally:
            self.pid = None
            # Grandchildren may hold the pipe open; what the worker itself wrote is there already.
            await asyncio.wait([forward], timeout=0.5)
            forward.cancel()
            _kill_group(process.pid, signal.SIGKILL)

    async def _forward(self, stderr: asyncio.StreamReader) -> None:
        """Pass the worker's log on, and keep its end for whoever asks why it died."""
        while chunk := await stderr.read(65_536):
            sys.stderr.buffer.write(chunk)
            sys.stderr.flush()
            self._lines.extend(line for line in chunk.decode(errors="replace").splitlines() if line.strip())

    def _last_line(self) -> str:
        return self._lines[-1].strip() if self._lines else ""

    async def stop(self) -> None:
        """End the process and its group: asked first, killed after a grace."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _TERM_GRACE_S)
        except TimeoutError:
            log.warning("worker did not end when asked", worker=self.name, pid=process.pid)
        _kill_group(process.pid, signal.SIGKILL)
        await process.wait()


def _kill_group(pid: int, sig: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, sig)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
