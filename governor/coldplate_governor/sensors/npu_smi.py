"""``npu-smi``: the chips' own tool, for what its table and pages tell.

The table is read each time (or taken from another process that has just read it); of the pages at most one each time,
as each becomes due, for every start of the tool costs and starts that are too many have made devices hang.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coldplate_governor.sensors.base import AGE, HEALTH, Readings, SensorError, SensorUnusable
from coldplate_governor.sensors.npu_faults import call_error, event_codes, is_unusable
from coldplate_governor.sensors.npu_smi_text import (
    ChipRow,
    number,
    parse_mapping,
    parse_page,
    parse_table,
    return_code,
)
from coldplate_governor.sensors.tool import ToolError, ToolOutput, ToolRunner, find_npu_smi

_MEGABYTE = 2**20
_TABLE_AGE_S = 0.8  # a little less than the least useful interval, so that agents share a run and none gets an old one
_MAPPING_AGE_S = 300.0
_PAGE_START_SHARE = 0.3  # of the time limit: a table that took longer leaves no time for a page
_PAGE_SHARE = 0.8
_NOT_SUPPORTED = "does not support"
_NO_DRIVER = "DrvMngGetConsoleLogLevel failed"
_NO_CARD = "There is no NPU card"
_MOUNTS = "are /dev/davinci_manager and the driver's libraries mounted?"


@dataclass(frozen=True, slots=True)
class _PageKind:
    """How often a page is read and when at all; what it tells of a chip. ``whole_card``: asked without a chip id."""

    name: str
    every_s: float
    wanted: Callable[[ChipRow], bool]
    read: Callable[[dict[str, str], dict[str, str]], Readings]
    whole_card: bool = False


class NpuSmiSensor:
    """Reads the chip with the logical id ``index``. One run of the tool has ``timeout_s`` seconds."""

    name = "npu-smi"

    def __init__(self, index: int, path: Path | None = None, timeout_s: float = 2.5) -> None:
        self._index = index
        self._path = path
        self._timeout_s = timeout_s
        self._runner: ToolRunner | None = None
        self._mapping: dict[tuple[int, int], int] = {}
        self._due_s: dict[str, float] = {}
        self._unsupported: set[str] = set()

    def read(self) -> Readings:
        started_s = time.monotonic()
        runner = self._found()
        output = self._run(runner, ("info",), _TABLE_AGE_S, self._timeout_s, parse_table)
        rows = parse_table(output.text)
        if not rows:
            raise _failure(output)
        row = self._own(runner, rows)
        readings: dict[str, float | str] = {AGE: max(0.0, time.monotonic() - output.at_s), **_from_row(row)}
        try:
            # What the table tells is newer than what a page may have told some other process.
            return {**self._next_page(runner, row, started_s), **readings}
        except SensorError as error:
            raise SensorError(str(error), readings) from error

    def _found(self) -> ToolRunner:
        if self._runner is None:
            path = self._path or find_npu_smi()
            if path is None:
                raise SensorUnusable(
                    "npu-smi: not found on the path nor in /usr/local/bin or /usr/local/sbin: mount it into this "
                    "container, or name it with --sensor npu-smi=PATH"
                )
            self._runner = ToolRunner(path)
        return self._runner

    def _run(
        self,
        runner: ToolRunner,
        args: tuple[str, ...],
        max_age_s: float,
        timeout_s: float,
        parse: Callable[[str], object],
    ) -> ToolOutput:
        try:
            return runner.cached(args, max_age_s, timeout_s, worked=lambda text: bool(parse(text)))
        except ToolError as error:
            raise (SensorUnusable if error.absent else SensorError)(f"npu-smi: {error}") from error

    def _own(self, runner: ToolRunner, rows: list[ChipRow]) -> ChipRow:
        """The row of this device. Raises SensorError that names the devices there are."""
        ids = {row: row.logical_id for row in rows}
        why = ""
        if None in ids.values():
            why = self._learn_mapping(runner, rows)
            ids = {row: self._mapping.get((row.npu_id, row.chip_id)) for row in rows}
        if not any(found is not None for found in ids.values()):
            # Physical and logical ids are the same outside of containers. Of one chip there is no doubt.
            ids = {row: row.physical_id if row.physical_id is not None else None for row in rows}
            if len(rows) == 1:
                ids = {rows[0]: 0}
        for row, found in ids.items():
            if found == self._index:
                return row
        shown = ", ".join(
            f"{'?' if found is None else found} (NPU {row.npu_id} chip {row.chip_id}, {row.name})"
            for row, found in list(ids.items())[:16]
        )
        raise SensorError(f"npu-smi: there is no device {self._index}; it shows {shown}{why}")

    def _learn_mapping(self, runner: ToolRunner, rows: list[ChipRow]) -> str:
        """Ask for the logical ids unless they are known; returns what went wrong, as the end of a sentence."""
        if all((row.npu_id, row.chip_id) in self._mapping for row in rows):
            return ""
        try:
            output = self._run(runner, ("info", "-m"), _MAPPING_AGE_S, self._timeout_s, parse_mapping)
        except SensorError as error:
            return f"; which is which could not be read: {error}"
        self._mapping = parse_mapping(output.text)
        return "" if self._mapping else "; `npu-smi info -m` does not tell which is which"

    def _next_page(self, runner: ToolRunner, row: ChipRow, started_s: float) -> Readings:
        """What the page that is due longest tells; nothing when none is due."""
        now = time.monotonic()
        due = [
            (self._due_s.get(kind.name, 0.0), order, kind)
            for order, kind in enumerate(_PAGES)
            if kind.name not in self._unsupported and kind.wanted(row) and self._due_s.get(kind.name, 0.0) <= now
        ]
        if not due or now - started_s > _PAGE_START_SHARE * self._timeout_s:
            return {}
        kind = min(due)[2]
        self._due_s[kind.name] = now + kind.every_s
        args: tuple[str, ...] = ("info", "-t", kind.name, "-i", str(row.npu_id))
        if not kind.whole_card:
            args += ("-c", str(row.chip_id))
        left_s = _PAGE_SHARE * self._timeout_s - (now - started_s)
        output = self._run(runner, args, 0.9 * kind.every_s, left_s, _says_anything)
        if _NOT_SUPPORTED in output.text:
            self._unsupported.add(kind.name)
            return {}
        if return_code(output.text) is not None or not _says_anything(output.text):
            raise _failure(output)
        page = parse_page(output.text, row.chip_id, kind.whole_card)
        return kind.read(page.chip, page.board)


def _says_anything(text: str) -> bool:
    """Whether a page has a line with a value: a chip that supports nothing of it may leave it out."""
    return ":" in text


def _from_row(row: ChipRow) -> dict[str, float | str]:
    """The readings of a row; what it does not tell is left out."""
    health = (row.health or "").lower()
    found: dict[str, float | str | None] = {
        "temperature_celsius": row.temperature_celsius,
        "power_watts": row.power_watts,
        "utilization_percent": row.utilization_percent,
        "memory_used_bytes": _scaled(row.memory_used_mb, _MEGABYTE),
        "memory_total_bytes": _scaled(row.memory_total_mb, _MEGABYTE),
        "health": health if health in HEALTH else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _common(chip: dict[str, str], board: dict[str, str]) -> Readings:
    """Clocks and power. The controller's power is the whole card's: never that of the chip printed above it."""
    return _numbers(
        {
            "rated_frequency_mhz": chip.get("aicorefreq(mhz)"),
            "frequency_mhz": chip.get("aicorecurfreq(mhz)"),
            "power_watts": chip.get("npureal-timepower(w)"),
            "board_temperature_celsius": board.get("temperature(c)"),
            "card_power_watts": board.get("npureal-timepower(w)", board.get("powerdissipation(w)")),
        }
    )


def _usages(chip: dict[str, str], board: dict[str, str]) -> Readings:
    hbm = "hbmbandwidthusagerate(%)"
    bandwidth = chip.get(hbm) or chip.get("memorybandwidthusagerate(%)") or chip.get("ddrbandwidthusagerate(%)")
    return _numbers({"memory_bandwidth_percent": bandwidth}, zero_is_none=False)


def _temp(chip: dict[str, str], board: dict[str, str]) -> Readings:
    hottest = max((value for text in board.values() if (value := number(text)) is not None), default=None)
    readings = dict(_numbers({"temperature_celsius": chip.get("nputemperature(c)", chip.get("temperature(c)"))}))
    return readings if not hottest else {**readings, "board_temperature_celsius": hottest}


def _power(chip: dict[str, str], board: dict[str, str]) -> Readings:
    return _numbers({"power_watts": chip.get("npureal-timepower(w)")})


def _memory(chip: dict[str, str], board: dict[str, str]) -> Readings:
    return _numbers({"memory_temperature_celsius": chip.get("hbmtemperature(c)")})


def _health(chip: dict[str, str], board: dict[str, str]) -> Readings:
    codes = chip.get("errorcode")
    return {} if codes is None else {"error_codes": " ".join(event_codes(codes))}


_PAGES = (
    _PageKind("common", 5.0, lambda row: True, _common, whole_card=True),
    _PageKind("temp", 5.0, lambda row: row.temperature_celsius is None, _temp),
    _PageKind("usages", 15.0, lambda row: True, _usages),
    _PageKind("health", 30.0, lambda row: (row.health or "OK") != "OK", _health),
    _PageKind("memory", 30.0, lambda row: row.has_hbm, _memory),
    _PageKind("power", 30.0, lambda row: row.power_watts is None, _power),
)


def _failure(output: ToolOutput) -> SensorError:
    """What a text without any reading says, in words."""
    code = return_code(output.text)
    if code is not None:
        return (SensorUnusable if is_unusable(code) else SensorError)(f"npu-smi: {call_error(code)}")
    if _NO_DRIVER in output.text:
        return SensorUnusable(f"npu-smi: the driver cannot be reached from here: {_MOUNTS}")
    if _NO_CARD in output.text:
        return SensorUnusable("npu-smi: no NPU is visible from here: map /dev/davinciN into this container")
    first = next((line.strip() for line in output.text.splitlines() if line.strip()), "nothing")
    return SensorError(f"npu-smi: no table that is known (exit code {output.code}): {first[:120]!r}")


def _numbers(texts: dict[str, str | None], zero_is_none: bool = True) -> dict[str, float]:
    """The texts that are numbers. What is measured here is never 0 on a chip that runs, except a share."""
    found = {name: number(text) for name, text in texts.items()}
    return {name: value for name, value in found.items() if value is not None and (value or not zero_is_none)}


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by
