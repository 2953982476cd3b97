"""A spawned worker: started by a command, restarted when it dies, ended with the server."""

import asyncio
import contextlib
import errno
import os
import signal
from collections import deque
from collections.abc import Callable
from io import FileIO

import structlog

from coldplate.clock import Clock
from coldplate.stderr import write_stderr

log = structlog.get_logger()

EXIT_UNUSABLE = 2
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.5, 30.0
_HEALTHY_AFTER_S = 60.0
_KEPT_LINES = 20
# What this machine lacks for a moment: tried again like a worker that died.
_PASSING_ERRORS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


class WorkerProcess:
    """Keeps one worker process alive in its own process group.

    A worker that exits with ``EXIT_UNUSABLE`` before it has ever served cannot serve as it is configured: it is not
    started again, and ``failure`` holds the last line it wrote. One that has served is started again: what it lacks
    now, memory say, may come back.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        clock: Clock,
        on_change: Callable[[], None],
        has_served: Callable[[], bool],
        term_grace_s: float = 5.0,
    ) -> None:
        self.name = name
        self.command = command
        self.restarts = 0
        self.pid: int | None = None
        self.failure: str | None = None
        self.last_exit: str | None = None
        self._clock = clock
        self._on_change = on_change
        self._has_served = has_served
        self._term_grace_s = term_grace_s
        self._process: asyncio.subprocess.Process | None = None
        self._forwarding: asyncio.Task[None] | None = None
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    async def run(self) -> None:
        """Start it and start it again, until cancelled or it proves unusable."""
        backoff = _FIRST_BACKOFF_S
        try:
            while True:
                started = self._clock.now()
                self.last_exit = await self._run_once() or self.last_exit
                if self.failure is not None:
                    log.error("worker cannot serve", worker=self.name, detail=self.failure)
                    self._on_change()
                    return
                if self._clock.now() - started > _HEALTHY_AFTER_S:
                    backoff = _FIRST_BACKOFF_S
                log.error("worker ended", worker=self.name, exit=self.last_exit, restart_in_s=backoff)
                self._on_change()
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _LAST_BACKOFF_S)
                self.restarts += 1
        finally:
            await self.stop()

    async def _run_once(self) -> str | None:
        """How it ended; None, and ``failure`` is set, when there is no use in starting it again."""
        self._lines.clear()
        try:
            process, log_end = await self._start()
        except OSError as error:
            reason = f"cannot start {self.command[0]!r}: {error.strerror}"
            if error.errno in _PASSING_ERRORS:
                return reason
            self.failure = reason
            return None
        self._process, self.pid = process, process.pid
        log.info("worker started", worker=self.name, pid=process.pid)
        self._forwarding = asyncio.create_task(self._forward(log_end))
        code = await process.wait()
        await self._bury(process)
        if code != EXIT_UNUSABLE:
            return _describe_exit(code)
        reason = self._last_line() or "the worker's settings are unusable"
        if self._has_served():
            return f"exit code {code}: {reason}"
        self.failure = reason
        return None

    async def _start(self) -> tuple[asyncio.subprocess.Process, FileIO]:
        """The process, and the end of its log to read from.

        The pipe is ours: were it asyncio's, a child of the worker that outlives it would hide that it has died.
        """
        read_end, write_end = os.pipe()
        log_end = FileIO(read_end, "rb")
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command, stdin=asyncio.subprocess.DEVNULL, stderr=write_end, start_new_session=True
            )
        except BaseException:
            log_end.close()
            raise
        finally:
            os.close(write_end)
        return process, log_end

    async def _bury(self, process: asyncio.subprocess.Process) -> None:
        """End what the worker has left behind, and take in its last words."""
        self._process = self.pid = None
        _kill_group(process.pid, signal.SIGKILL)
        if self._forwarding is not None:
            await asyncio.wait([self._forwarding], timeout=0.5)
            self._forwarding.cancel()

    async def _forward(self, log_end: FileIO) -> None:
        """Pass the worker's log on, and keep its end for whoever asks why it died."""
        stderr = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(stderr)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, log_end)
        try:
            while chunk := await stderr.read(65_536):
                write_stderr(chunk)
                self._lines.extend(line for line in chunk.decode(errors="replace").splitlines() if line.strip())
        finally:
            transport.close()

    def _last_line(self) -> str:
        return self._lines[-1].strip() if self._lines else ""

    async def stop(self) -> None:
        """End the process and its group: asked first, killed after a grace."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._term_grace_s)
        except TimeoutError:
            log.warning("worker did not end when asked", worker=self.name, pid=process.pid)
            _kill_group(process.pid, signal.SIGKILL)
            await process.wait()
        await self._bury(process)


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
