"""What vLLM's processes write: passed on, read for the progress of a start, and kept to tell why they died."""

import contextlib
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator

from coldplate_engine.runner import ReportProgress

_KEPT_LINES = 400
_CHUNK_BYTES = 65_536
# What vLLM says of itself -> the phase that has begun, and the share of it that is done.
_MILESTONES = (
    (re.compile(r"Initializing a V1 LLM engine"), "engine_core", 1.0),
    (re.compile(r"Starting to load model"), "weights", 0.0),
    (re.compile(r"Loading weights took"), "weights", 1.0),
    (re.compile(r"KV cache size"), "kv_cache", 1.0),
    (re.compile(r"init engine .* took"), "warm_up", 1.0),
)
_SHARDS = re.compile(r"checkpoint shards:\s+(\d+)% Completed")


class ChildLog:
    """A pipe that vLLM's processes inherit as their standard output and error, read in a thread of its own.

    What they write goes on to this process's standard error, whatever becomes of this process's own output meanwhile.
    """

    def __init__(self, progress: ReportProgress) -> None:
        self._progress = progress
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._lock = threading.Lock()
        self._stderr = os.dup(2)
        self._read_end, self._write_end = os.pipe()
        threading.Thread(target=self._read, name="vllm-log", daemon=True).start()

    @contextlib.contextmanager
    def inherited(self) -> Iterator[None]:
        """Processes started inside the block write into this log; so does this process until its end."""
        saved = os.dup(1)
        _flush()
        for fd in (1, 2):
            os.dup2(self._write_end, fd)
        try:
            yield
        finally:
            _flush()
            os.dup2(saved, 1)
            os.dup2(self._stderr, 2)
            os.close(saved)

    def lines(self) -> list[str]:
        """The last of what was written, oldest first."""
        with self._lock:
            return list(self._lines)

    def forget(self) -> None:
        """Drop what was written so far: it has gone well."""
        with self._lock:
            self._lines.clear()

    def _read(self) -> None:
        rest = b""
        while chunk := os.read(self._read_end, _CHUNK_BYTES):
            with contextlib.suppress(OSError):
                os.write(self._stderr, chunk)
            *whole, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
            for line in whole:
                self._take(line.decode(errors="replace"))

    def _take(self, line: str) -> None:
        if not line.strip():
            return
        with self._lock:
            self._lines.append(line)
        if shards := _SHARDS.search(line):
            self._progress("weights", int(shards[1]) / 100)
        for pattern, phase, share in _MILESTONES:
            if pattern.search(line):
                self._progress(phase, share)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
