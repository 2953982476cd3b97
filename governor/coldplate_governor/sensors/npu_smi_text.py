"""What ``npu-smi`` prints, read into numbers. Pure: text in, rows and blocks out; nothing raises.

``npu-smi info`` prints a table with two lines for each chip, in one of four layouts that differ by chip and driver. The
layout is told by the text of the two header lines; cells are split on ``|`` and at blanks, never by column. Field names
as in the header: ``Power(W)``, ``Temp(C)``, ``AICore(%)`` … A row that does not fit its header loses what is ambiguous
and keeps the rest: a field that cannot be told is None.

``npu-smi info -t TYPE`` prints pages of ``key : value`` lines in blocks, one for each chip, and one for the board's
controller (MCU), which is not a chip.
"""

import re
from dataclasses import dataclass, field, fields, replace
from typing import Any

_FIRST_HEADER = "temp(c)"
_SECOND_HEADER = "memory-usage(mb)"
_PROCESS_HEADER = "processid"
_RETURN_CODE = re.compile(r"\bret\s+is\s+(-\d{1,5})\b")
_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,6})?")
_PAIR = re.compile(r"(\S+?)\s*/\s*(\S+)")
_CARD_KEYS = ("npuid", "chipcount")
_BOARD_PROCESSOR = "3559"
_BOARD_SENSOR = re.compile(r"lm75\w*\(c\)")


@dataclass(frozen=True, slots=True)
class ChipRow:
    """One chip of the table; None where the tool tells nothing. Memory in MB of 2^20 bytes, HBM where there is any."""

    npu_id: int
    chip_id: int
    name: str
    health: str | None = None
    logical_id: int | None = None  # printed by layout A only
    physical_id: int | None = None  # printed by layout B' only
    has_hbm: bool = False
    temperature_celsius: float | None = None
    power_watts: float | None = None
    utilization_percent: float | None = None
    memory_used_mb: float | None = None
    memory_total_mb: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """What a ``-t`` page says of one chip, and of the controller of its board, as texts by key.

    Keys are in lower case without blanks, such as ``aicorecurfreq(mhz)``.
    """

    chip: dict[str, str] = field(default_factory=dict)
    board: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The fields of the two lines of a chip, the ids its second line begins with, and the cells of a line."""

    first: tuple[str, ...]
    second: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    cells: int = 3


def parse_table(text: str) -> list[ChipRow]:
    """The chips of ``npu-smi info``, in the order of the table. A chip of which a line is missing is left out."""
    rows: dict[tuple[int, int], ChipRow] = {}
    layout: _Layout | None = None
    above: list[str] | None = None
    for line in text.splitlines():
        cells = _cells(line)
        if cells is None:
            if line.lstrip()[:1] in ("+", "|"):  # a rule, or a line that was cut; anything else only got in between
                above = None
            continue
        plain = "".join(cells).replace(" ", "").lower()
        if _PROCESS_HEADER in plain:
            break
        if _FIRST_HEADER in plain:
            layout, above = _Layout(_fields(cells[-1]), cells=len(cells)), None
        elif _SECOND_HEADER in plain and layout is not None:
            layout = _second_header(layout, cells)
        elif layout is None or not layout.second or len(cells) != layout.cells:
            above = None
        elif above is None:
            above = cells
        else:
            row = _row(layout, above, cells)
            above = None if row else cells
            if row:
                _keep(rows, row)
    return list(rows.values())


def parse_mapping(text: str) -> dict[tuple[int, int], int]:
    """Logical ids by (NPU id, chip id) from ``npu-smi info -m``; what is no compute chip has none."""
    mapping: dict[tuple[int, int], int] = {}
    column: int | None = None
    chip_column = 0
    for line in text.splitlines():
        titles = [title.lower() for title in re.split(r"\s{2,}|\t", line.strip())]
        if titles[0] == "npu id":
            name = next((n for n in ("chip logic id", "chip phy-id") if n in titles), None)
            if name is None or "chip id" not in titles:
                return {}
            column, chip_column = titles.index(name), titles.index("chip id")
            continue
        words = line.split()
        if column is None or len(words) <= max(column, chip_column):
            continue
        ids = [words[0], words[chip_column], words[column]]
        if all(_whole(word) is not None for word in ids):
            mapping[int(ids[0]), int(ids[1])] = int(ids[2])
    return mapping


def parse_page(text: str, chip_id: int, whole_card: bool = False) -> Page:
    """A ``-t`` page of chip ``chip_id``, or one of a whole card.

    On the page of a card a line ``Chip ID`` begins each chip's lines, a line ``Chip Name : mcu`` the controller's, and
    an empty line ends them; a chip that has no id has its lines at the top. A page of one chip has no such line, or one
    at its end; when that names another chip, nothing in the page is believed.
    """
    page = Page()
    elsewhere: dict[str, str] = {}
    alone = "chipid" not in {_key(line.partition(":")[0]) for line in text.splitlines()}
    block = page.chip if alone or not whole_card else elsewhere
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        key, value = _key(key), value.strip()
        if whole_card and not line.strip():
            block = elsewhere
        elif key == "chipcount" and whole_card and alone and value != "1":
            block = elsewhere  # its chips cannot be told apart
        elif not colon or not key or not value or key in _CARD_KEYS:
            continue
        elif key == "chipid":
            if whole_card:
                block = page.chip if _whole(value) == chip_id else elsewhere
            elif _whole(value) != chip_id:
                return Page()
        elif key == "chipname":
            block = page.board if value.lower() == "mcu" else elsewhere if value == _BOARD_PROCESSOR else block
        elif _BOARD_SENSOR.fullmatch(key):
            page.board.setdefault(key, value)
        else:
            block.setdefault(key, value)
    return page


def number(text: str | None) -> float | None:
    """The number a cell or value is, None for ``NA``, ``-``, ``Failed`` and anything else that is none."""
    return float(text) if text is not None and _NUMBER.fullmatch(text) else None


def return_code(text: str) -> int | None:
    """DCMI's return code in a failure text such as ``dcmi module initialize failed. ret is -8005``."""
    found = _RETURN_CODE.search(text)
    return int(found[1]) if found else None


def _cells(line: str) -> list[str] | None:
    """The cells of a table's line; None for a line that is none, or was cut."""
    line = line.strip()
    if len(line) < 3 or line[0] != "|" or line[-1] != "|":
        return None
    return [cell.strip() for cell in line[1:-1].split("|")]


def _fields(cell: str) -> tuple[str, ...]:
    """The fields a header cell names: ``NPU Util(%)`` is one of them, though it has a blank in it."""
    return tuple(re.findall(r"(?:NPU )?\S+\([^)]*\)", cell))


def _second_header(layout: _Layout, cells: list[str]) -> _Layout | None:
    if len(cells) != layout.cells:
        return None
    ids = tuple(" ".join(cells[:-2]).lower().split())
    if ids not in ((), ("chip",), ("chip", "device"), ("chip", "phy-id")):
        return None
    return replace(layout, second=_fields(cells[-1]), ids=ids)


def _row(layout: _Layout, first: list[str], second: list[str]) -> ChipRow | None:
    """The chip of two lines, None when they are not the two lines of one chip."""
    ids = " ".join(first[:-2]).split()
    npu_id = _whole(ids[0]) if len(ids) >= 2 else None
    name = " ".join(ids[1:])
    if npu_id is None or not any(letter.isalpha() for letter in name):
        return None
    words = " ".join(second[:-2]).split()
    told = dict(zip(layout.ids, map(_whole, words), strict=False))
    if len(words) != len(layout.ids) or None in told.values():
        return None
    values = _values(layout.first, first[-1]) | _values(layout.second, second[-1])
    used, total = _memory(values)
    power = number(values.get("Power(W)"))
    return ChipRow(
        npu_id=npu_id,
        chip_id=told.get("chip") or 0,
        name=name,
        health=first[-2] or None,
        logical_id=told.get("device"),
        physical_id=told.get("phy-id"),
        has_hbm=any(name.startswith("HBM") for name in layout.second),
        temperature_celsius=number(values.get("Temp(C)")),
        power_watts=power or None,  # a chip that runs draws more than 0.0, which 310B boards print
        utilization_percent=number(values.get("AICore(%)", values.get("NPU Util(%)"))),
        memory_used_mb=used,
        memory_total_mb=total,
    )


def _values(fields: tuple[str, ...], cell: str) -> dict[str, str]:
    """Values by field. When there are more or fewer than fields, one cannot tell which is which: then there are none.

    Pairs such as ``0 / 8728`` and single values are counted apart, so that one that is missing costs only its kind.
    """
    pairs = [f"{used}/{total}" for used, total in _PAIR.findall(cell)]
    singles = _PAIR.sub(" ", cell).split()
    values: dict[str, str] = {}
    for kind, found in ((True, pairs), (False, singles)):
        named = [name for name in fields if ("Usage" in name) == kind]
        if len(named) == len(found):
            values |= dict(zip(named, found, strict=True))
    return values


def _memory(values: dict[str, str]) -> tuple[float | None, float | None]:
    """Used and total of HBM, else of plain memory; what is 0 in total is not there."""
    for name in ("HBM-Usage(MB)", "Memory-Usage(MB)"):
        used, _, total = (number(part) for part in values.get(name, "").partition("/"))
        if total and total > 0:
            return (used if used is not None and 0 <= used <= total else None), total
    return None, None


def _keep(rows: dict[tuple[int, int], ChipRow], row: ChipRow) -> None:
    """A chip that is told twice keeps what both tell alike."""
    key = row.npu_id, row.chip_id
    before = rows.get(key)
    if before is None or before == row:
        rows[key] = row
        return
    optional = [f.name for f in fields(ChipRow) if f.default is None]
    differ: dict[str, Any] = {n: None for n in optional if getattr(row, n) != getattr(before, n)}
    rows[key] = replace(row, **differ)


def _key(text: str) -> str:
    return "".join(text.split()).lower()


def _whole(word: str) -> int | None:
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 9 else None
