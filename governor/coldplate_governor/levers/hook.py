"""``hook=CMD``: a command of the operator's that sets a clock, such as one that asks a BMC for a power cap.

It is called with the wanted share of the rated clock as its last argument, from 0.10 to 1.00, and the device's name in
``COLDPLATE_HOOK_DEVICE``; its last line that is a number must be the share now in force. 1.00 is also how it is told to
put everything back. It is called when the wish changes, and once a minute while it is below 1.
"""

import math
import shlex
import shutil
from pathlib import Path
from typing import Protocol

from coldplate_governor.levers.base import Level, LeverError
from coldplate_governor.sensors.tool import ToolError, ToolOutput, ToolRunner

DEVICE_VARIABLE = "COLDPLATE_HOOK_DEVICE"
TIMEOUT_S = 8.0
_TOLERANCE = 0.25  # a hook may know coarse levels only
_STEPS = 18
_FULL = "1.00"


class _Tool(Protocol):
    def run(self, args: tuple[str, ...], timeout_s: float) -> ToolOutput: ...


class HookLever:
    """Runs ``command``, split as a shell would and run without one. Raises ValueError when it cannot be a command."""

    name = "hook"

    def __init__(self, command: str, tool: _Tool | None = None) -> None:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"{command[:80]!r}: {error}") from error
        if not words:
            raise ValueError("needs a command: hook=CMD")
        if "set-freq" in words:
            raise ValueError(NO_SET_FREQ)
        self._words = tuple(words)
        self._tool = tool

    def original(self) -> str:
        return _FULL

    def probe(self, original: str) -> tuple[Level, ...]:
        self._call(original)
        return tuple(Level(round(1 - step * 0.05, 2), f"{1 - step * 0.05:.0%}") for step in range(_STEPS + 1))

    def set(self, level: Level) -> float:
        share = self._call(f"{level.share:.2f}")
        if abs(share - level.share) > _TOLERANCE:
            raise LeverError(f"{self.name}: {level.share:.2f} was asked for and {share:.2f} is in force")
        return share

    def restore(self, original: str) -> None:
        self._call(original)

    def _call(self, share: str) -> float:
        if self._tool is None:
            path = shutil.which(self._words[0])
            if path is None:
                raise LeverError(f"{self.name}: {self._words[0]}: there is no such command")
            self._tool = ToolRunner(Path(path))
        try:
            output = self._tool.run((*self._words[1:], share), TIMEOUT_S)
        except ToolError as error:
            raise LeverError(f"{self.name}: {error}") from error
        said = " ".join(output.text.split())[:200] or "nothing"
        if output.code != 0:
            raise LeverError(f"{self.name}: {self._words[0]} ended with {output.code} and said: {said}")
        found = next((number for line in reversed(output.text.splitlines()) if (number := _share(line))), None)
        if found is None:
            raise LeverError(f"{self.name}: expected the share in force, above 0 to 1, on a line; it said: {said}")
        return found


NO_SET_FREQ = (
    "there is no `npu-smi set-freq`, on no chip and in no driver: a 310B has work levels (work-level), a 310P and a "
    "910B have nothing in band; what a BMC can do goes into a command of yours (hook=CMD)"
)


def _share(line: str) -> float | None:
    try:
        value = float(line)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 < value <= 1 else None
