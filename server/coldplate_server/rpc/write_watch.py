"""Finds callers that have stopped reading, at no cost per message."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from coldplate_server.errors import SlowReader


class WriteWatch:
    """Tells a write that takes longer than ``timeout_s`` from one that goes on, and cancels its task.

    Looks twice in ``timeout_s``: a stuck write is given up after one to one and a half times that.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._write = 0
        self._writing = False
        self._stuck_looks = 0
        self._last_look = 0
        self._gave_up = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the writes of the current task inside the block. Raises SlowReader in place of a stuck write."""
        task = asyncio.current_task()
        assert task is not None
        self._look_again(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._gave_up:
                raise
            task.uncancel()
            raise SlowReader(f"nothing was read for {self._timeout_s:g} s; the stream was given up") from None
        finally:
            self._timer.cancel()

    def begin(self) -> None:
        self._write += 1
        self._writing = True

    def end(self) -> None:
        self._writing = False

    def _look_again(self, task: asyncio.Task[object]) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s / 2, self._look, task)

    def _look(self, task: asyncio.Task[object]) -> None:
        stuck = self._writing and self._write == self._last_look
        self._stuck_looks = self._stuck_looks + 1 if stuck else 0
        self._last_look = self._write
        if self._stuck_looks == 2:
            self._gave_up = True
            task.cancel()
        else:
            self._look_again(task)
