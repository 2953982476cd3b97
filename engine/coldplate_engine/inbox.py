"""Where an engine's commands wait, and what its end means: shared by every kind of engine."""

import queue
from typing import Protocol

from coldplate_engine.messages import Command

EXIT_OK = 0
EXIT_REPLACE_DEVICE = 3

# A rest may be longer than any timer takes; it is then waited for in parts.
_LONGEST_WAIT_S = 3600.0


class Inbox(Protocol):
    """Where commands wait for the loop."""

    def take(self, timeout_s: float | None) -> list[Command]:
        """All commands, in order; waits up to ``timeout_s`` (None: for ever) for the first, or gives none earlier."""
        ...

    def put(self, command: Command) -> None:
        """Add a command, from any thread."""
        ...


class CommandQueue:
    """An inbox that other threads fill."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        self._queue.put(command)

    def take(self, timeout_s: float | None) -> list[Command]:
        commands: list[Command] = []
        try:
            if timeout_s is None or timeout_s > 0:
                commands.append(self._queue.get(timeout=timeout_s and min(timeout_s, _LONGEST_WAIT_S)))
            while True:
                commands.append(self._queue.get_nowait())
        except queue.Empty:
            return commands
