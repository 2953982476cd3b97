"""Keeping the lever process of one device: started once, told what to set, never waited for, killed when it hangs."""

import contextlib
import json
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

_MAX_LINE_BYTES = 64 * 1024
_MAX_WAITING = 64

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class LeverHandle:
    """The process of one lever. Every method returns at once, except ``wait``.

    It ends by itself when its standard input does, also when the governor was killed, and then puts the clock back.
    """

    device: str
    lever: str
    state: Path
    restore_only: bool = False
    _popen: subprocess.Popen[bytes] | None = None
    _reader: threading.Thread | None = None
    _waiting: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MAX_WAITING))

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen else None

    def start(self) -> None:
        """Raises OSError."""
        command = [
            *(sys.executable, "-m", "coldplate_governor.levers.child", "--device", self.device),
            *("--lever", self.lever, "--state", str(self.state), *(["--restore"] if self.restore_only else [])),
        ]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._reader = threading.Thread(
            target=self._read, args=(self._popen,), name=f"lever-{self.device}", daemon=True
        )
        self._reader.start()

    def send(self, number: int, share: float | None) -> bool:
        """Ask for a share; False when the process is gone. At most one request is under way, so the pipe has room."""
        assert self._popen is not None
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps({"id": number, "share": share}).encode() + b"\n")
            self._popen.stdin.flush()
        except (OSError, ValueError):
            return False
        return True

    def take(self) -> list[dict[str, Any]]:
        """The messages that have come since the last call, oldest first."""
        messages = []
        while self._waiting:
            messages.append(self._waiting.popleft())
        return messages

    def ended(self) -> int | None:
        """The exit code once it has ended and all it said has been read."""
        if self._popen is None or self._popen.poll() is None:
            return None
        if self._reader is not None and self._reader.is_alive():
            return None
        return self._popen.returncode

    def end(self) -> None:
        """Have it put the clock back and end."""
        if self._popen is not None and self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    def kill(self) -> None:
        if self._popen is not None:
            self._popen.kill()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it has not come."""
        if self._popen is None:
            return True
        try:
            self._popen.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return False
        if self._reader is not None:
            self._reader.join(1.0)
        return True

    def _read(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdout is not None
        with popen.stdout:
            while line := popen.stdout.readline(_MAX_LINE_BYTES):
                try:
                    message = json.loads(line)
                except ValueError:
                    continue
                if isinstance(message, dict):
                    self._waiting.append(message)
