"""Writing to standard error without ever waiting long for whoever should read it.

A pipe that nobody empties would stop a process in its next log line, and a full disk would raise in the middle of its
work. What cannot be written is dropped, and how much is told as soon as lines get through again.
"""

import contextlib
import io
import os
import select
import sys
import threading

_CHUNK_BYTES = select.PIPE_BUF  # a pipe that is ready takes as much at once
_PATIENCE_S = 0.2


class StderrWriter:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stuck = False
        self._torn = False
        self._dropped = 0

    def write(self, data: bytes) -> None:
        """Write whole lines. Waits up to 0.2 s for a reader that is behind, and not again until it has caught up."""
        with self._lock:
            self._write(data)

    def _write(self, data: bytes) -> None:
        if self._dropped or self._torn:
            told = f"{self._dropped} messages were dropped here: nobody read standard error\n" if self._dropped else ""
            data = b"\n" * self._torn + told.encode() + data
        written = self._put(data)
        if written == len(data):
            self._stuck = self._torn = False
            self._dropped = 0
        else:
            self._torn = self._torn or written > 0
            self._stuck = True
            self._dropped += 1

    def _put(self, data: bytes) -> int:
        """Returns how many bytes were written."""
        try:
            fd = sys.stderr.fileno()
        except (AttributeError, ValueError, io.UnsupportedOperation):
            return _put_into_object(data)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()  # what was printed past this writer comes first
        done = 0
        ready = select.poll()
        ready.register(fd, select.POLLOUT)
        with contextlib.suppress(OSError):
            while done < len(data):
                if not ready.poll(0 if self._stuck else _PATIENCE_S * 1000):
                    break
                done += os.write(fd, data[done : done + _CHUNK_BYTES])
        return done


def _put_into_object(data: bytes) -> int:
    """For a standard error that is no file, such as a test's."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(data.decode(errors="replace"))
    return len(data)


_WRITER = StderrWriter()


def write_stderr(data: bytes) -> None:
    """Write whole lines to this process's standard error; see ``StderrWriter``."""
    _WRITER.write(data)
