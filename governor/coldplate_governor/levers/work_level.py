"""``work-level``: the coarse levels (nve-level) of a 310B, set with ``npu-smi`` by root on the bare host.

A level sets AI core and CPU together, by part (Huawei's documents of npu-smi for the Atlas 200I A2; AI core 1224, 1000,
500 and 250 MHz are 20, 16, 8 and 4 TOPS). ``is_in_flash`` is never used: a level ends with a restart of the machine.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from coldplate_governor.levers.base import Level, LeverError
from coldplate_governor.sensors.npu_smi_text import ChipRow, parse_table
from coldplate_governor.sensors.tool import ToolError, ToolOutput, ToolRunner, find_npu_smi

TIMEOUT_S = 8.0
_AI_CORE_MHZ = {"20T": 1224, "16T": 1000, "8T": 500, "4T": 250}
# What is set by which number, by part.
PARTS: dict[str, tuple[str, ...]] = {
    "20T": ("20T_1.6GHz", "8T_1.0GHz", "16T_1.6GHz", "8T_1.6GHz"),
    "8T": ("8T_1.0GHz", "4T_1.0GHz"),
}
_CHIPS = {"310B1": "20T", "310B4": "8T"}
_LEVEL = re.compile(r"nve[ _-]?level\s*:\s*(\d+T_[\d.]+GHz)", re.IGNORECASE)
_HINT = "it takes root on the bare host; containers and PCIe hosts cannot set it, nor can a 310P or a 910B"


class _Tool(Protocol):
    def run(self, args: tuple[str, ...], timeout_s: float) -> ToolOutput: ...


class WorkLevelLever:
    """Device ``npu:index``. ``part`` is "20T" or "8T", None to find out; ``tool`` runs npu-smi."""

    name = "work-level"

    def __init__(self, index: int, part: str | None = None, tool: _Tool | None = None) -> None:
        self._index = index
        self._part = part
        self._tool = tool
        self._chip: ChipRow | None = None

    def original(self) -> str:
        return self._read()

    def probe(self, original: str) -> tuple[Level, ...]:
        part = self._part or self._find_part(original)
        if original not in PARTS[part]:
            expected = ", ".join(PARTS[part])
            raise LeverError(f"{self.name}: a part of {part} has no level {original!r}: expected {expected}")
        self._part = part
        self._write(original)
        levels = _usable(part, original)
        if len(levels) < 2:
            raise LeverError(f"{self.name}: {original} is set, and no slower level is left")
        return levels

    def set(self, level: Level) -> float:
        self._write(level.name)
        return level.share

    def restore(self, original: str) -> None:
        if self._part is None:
            self._part = self._find_part(original)
        if self._read() != original:
            self._write(original)

    def _write(self, name: str) -> None:
        assert self._part is not None
        chip = self._find_chip()
        number = PARTS[self._part].index(name)
        said = self._run("set", "-t", "nve-level", "-i", str(chip.npu_id), "-c", str(chip.chip_id), "-d", str(number))
        words = _one_line(said.text) or "nothing"
        if said.code != 0:
            raise LeverError(f"{self.name}: npu-smi refused {name} and said: {words}; {_HINT}")
        if (now := self._read()) != name:
            raise LeverError(f"{self.name}: {name} was asked for, npu-smi said: {words}, and {now} is set")

    def _read(self) -> str:
        chip = self._find_chip()
        output = self._run("info", "-t", "nve-level", "-i", str(chip.npu_id), "-c", str(chip.chip_id))
        found = _LEVEL.search(output.text)
        if found is None:
            words = _one_line(output.text) or "nothing"
            raise LeverError(f"{self.name}: npu-smi tells no level of npu:{self._index}; it said: {words}; {_HINT}")
        return found[1]

    def _find_part(self, level: str) -> str:
        fitting = [part for part, names in PARTS.items() if level in names]
        if len(fitting) == 1:
            return fitting[0]
        chip = self._find_chip().name
        if (part := next((part for name, part in _CHIPS.items() if name in chip), None)) is not None:
            return part
        raise LeverError(
            f"{self.name}: {level} and chip {chip!r} do not tell which part it is: "
            f"say so, --frequency npu:{self._index}@work-level=8T (or 20T)"
        )

    def _find_chip(self) -> ChipRow:
        if self._chip is None:
            output = self._run("info")
            rows = {row.logical_id: row for row in parse_table(output.text)}
            if self._index not in rows:
                shown = ", ".join(f"{row.name} as npu:{index}" for index, row in rows.items())
                raise LeverError(
                    f"{self.name}: npu-smi shows no npu:{self._index}: {shown or _one_line(output.text) or 'nothing'}"
                )
            self._chip = rows[self._index]
        return self._chip

    def _run(self, *args: str) -> ToolOutput:
        if self._tool is None:
            path = find_npu_smi()
            if path is None:
                raise LeverError(f"{self.name}: npu-smi is not on this machine")
            self._tool = ToolRunner(path)
        try:
            return self._tool.run(args, TIMEOUT_S)
        except ToolError as error:
            raise LeverError(f"{self.name}: {error}") from error


def make_work_level(index: int, argument: str | None, runner: Callable[[Path], _Tool] = ToolRunner) -> WorkLevelLever:
    """``argument`` is a part, or the path of npu-smi. Raises ValueError."""
    if argument is None or argument in PARTS:
        return WorkLevelLever(index, argument)
    if "/" in argument:
        return WorkLevelLever(index, None, runner(Path(argument)))
    raise ValueError(f"argument is {argument[:80]!r}: expected {', '.join(PARTS)} or the path of npu-smi")


def _usable(part: str, original: str) -> tuple[Level, ...]:
    """Fastest first, from ``original`` down. Of levels with the same AI core clock the one with the faster CPU: that is
    the fallback."""
    top = _mhz(PARTS[part][0])
    by_clock = {_mhz(name): name for name in sorted(PARTS[part], key=_cpu) if _mhz(name) <= _mhz(original)}
    by_clock[_mhz(original)] = original
    return tuple(Level(mhz / top, by_clock[mhz]) for mhz in sorted(by_clock, reverse=True))


def _mhz(level: str) -> int:
    return _AI_CORE_MHZ[level.partition("_")[0]]


def _cpu(level: str) -> float:
    return float(level.partition("_")[2].removesuffix("GHz"))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
