"""A request to stop that may come from a signal handler."""

import os
import select


class StopRequest:
    """Set once, from any thread or from a signal handler, where the lock inside threading.Event could deadlock."""

    def __init__(self) -> None:
        self._is_set = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            os.write(self._write, b"x")

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s``; returns whether the request has come."""
        if not self._is_set:
            select.select([self._read], [], [], max(0.0, timeout_s))
        return self._is_set

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)
