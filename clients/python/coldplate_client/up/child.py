"""One supervised process: started in its own session, its log in a file, watched by a thread."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from coldplate.parent import PARENT_VARIABLE

EXIT_UNUSABLE = 2
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.5, 30.0
_HEALTHY_AFTER_S = 60.0
_TAIL_LINES = 5


class Child:
    """``on_end(child, code, restarts)`` is called from the watching thread whenever it ends without being asked to.

    With ``restart`` it is started again, with a growing delay, unless it ended with exit code 2: then its settings are
    unusable and another start would end the same way.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        log_path: Path,
        environment: Mapping[str, str],
        *,
        restart: bool,
        on_end: Callable[["Child", int, bool], None],
    ) -> None:
        self.name, self.log_path = name, log_path
        self._command, self._environment, self._restart, self._on_end = command, environment, restart, on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._launched = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._watch, name=f"watch-{name}", daemon=True)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Raises OSError when it cannot be started at all."""
        self._thread.start()
        self._launched.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self, grace_s: float) -> None:
        """SIGTERM, then after ``grace_s`` SIGKILL to all of its group."""
        self._stopping.set()
        if self._process is None:
            return
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._thread.join(5)

    def last_lines(self) -> list[str]:
        """The end of its log."""
        with suppress(OSError):
            return self.log_path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return []

    def _launch(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._environment, PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,
            )

    def _watch(self) -> None:
        """Starts it in this thread, which stays: the child ends with the thread that started it."""
        try:
            self._launch()
        except OSError as error:
            self._failure = error
            return
        finally:
            self._launched.set()
        backoff_s = _FIRST_BACKOFF_S
        while True:
            assert self._process is not None
            started = time.monotonic()
            code = self._process.wait()
            if self._stopping.is_set():
                return
            again = self._restart and code != EXIT_UNUSABLE
            self._on_end(self, code, again)
            if not again:
                return
            if time.monotonic() - started > _HEALTHY_AFTER_S:
                backoff_s = _FIRST_BACKOFF_S
            if self._stopping.wait(backoff_s):
                return
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)
            self._launch()


def describe_exit(code: int) -> str:
    """An exit code in words."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
