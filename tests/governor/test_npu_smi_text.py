"""What npu-smi prints, read: every row and failure text on record, and the same texts damaged at random."""

import re
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate_governor.sensors.npu_faults import call_error, event_codes, event_meaning, is_unusable
from coldplate_governor.sensors.npu_smi_text import ChipRow, parse_mapping, parse_page, parse_table, return_code
from support import npu_smi_pages as pages
from support.npu_smi_pages import Chip, layout_a, layout_b, layout_c

Layout = Callable[[list[Chip]], str]


def layout_b_prime(chips: list[Chip]) -> str:
    return layout_b(chips, physical_ids=True)


# One chip each: temperature, power, use in percent, memory used and total in MB, as the record has them.
ROWS: list[tuple[str, Layout, Chip, tuple[float | None, ...]]] = [
    ("310P3 Duo, first chip", layout_a, pages.DUO[0], (45, None, 0, 1529, 44280)),
    ("310P3 Duo, second chip", layout_a, pages.DUO[1], (None, None, 0, 1412, 43693)),
    ("310P3 24G", layout_a, pages.P310_24G, (29, None, 0, 1832, 21527)),
    ("310P3 24.1.0.1", layout_a, pages.P310_2410, (47, None, 0, 1894, 44215)),
    ("310P3 25.2.3", layout_a, pages.P310_HOT, (71, None, 0, 1848, 21525)),
    ("310P3 25.5.1", layout_a, pages.P310_255, (71, None, 0, 1448, 44278)),
    ("310P3 all huge pages used", layout_a, pages.P310_FULL, (40, None, 0, 19435, 21527)),
    ("310B4 Orange Pi", layout_a, pages.B310_ORANGE_PI, (65, None, 0, 3628, 15609)),
    ("310B1 20T", layout_a, pages.B310_20T, (66, 10.4, 0, 957, 10810)),
    ("310B 24.1", layout_a, pages.B310_2413, (42, 7.6, 0, 1003, 10810)),
    ("310B1 EP", layout_a, pages.B310_EP, (49, None, 0, 600, 7578)),
    ("910B2C", layout_b, pages.B910_2C, (51, 88.6, 0, 20701, 65536)),
    ("910B3 idle", layout_b, pages.B910_IDLE, (40, 93.6, 0, 3380, 65536)),
    ("910B3 busy", layout_b, pages.B910_BUSY, (46, 223.8, 96, 54996, 65536)),
    ("A3, first die", layout_b_prime, pages.A3_DIES[0], (40, 167.7, 0, 3172, 65536)),
    ("A3, second die", layout_b_prime, pages.A3_DIES[1], (40, None, 0, 2880, 65536)),
    ("310P3 in the table of a 910B", layout_b, pages.P310_IN_B, (44, 28.5, 3, 1832, 21527)),
    ("950", layout_c, pages.A5, (45, 120.0, 20, 2048, 8192)),
]


def numbers(row: ChipRow) -> tuple[float | None, ...]:
    memory = (row.memory_used_mb, row.memory_total_mb)
    return (row.temperature_celsius, row.power_watts, row.utilization_percent, *memory)


@pytest.mark.parametrize(("layout", "chip", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_every_row_on_record(layout: Layout, chip: Chip, expected: tuple[float | None, ...]) -> None:
    (row,) = parse_table(layout([chip]))
    assert numbers(row) == expected
    assert (row.npu_id, row.chip_id, row.name, row.health) == (chip.npu, chip.chip, chip.name, chip.health)
    assert row.logical_id == (chip.device if layout is layout_a else None)
    assert row.physical_id == (chip.device if layout is layout_b_prime else None)


def test_a_duo_is_two_chips_under_one_id_and_its_processes_are_none() -> None:
    rows = parse_table(layout_a(list(pages.DUO)))
    assert [(row.npu_id, row.chip_id, row.logical_id) for row in rows] == [(2, 0, 0), (2, 1, 1)]


def test_a_driver_that_complains_in_between_costs_nothing() -> None:
    text = layout_b([pages.B910_IDLE, pages.B910_BUSY])
    noisy = text.replace("\n", "\n" + pages.NO_DRIVER)
    assert parse_table(noisy) == parse_table(text)


def test_a_missing_column_costs_only_itself() -> None:
    text = layout_b([pages.B910_BUSY]).replace("HBM-Usage(MB)", " " * 13)
    assert "HBM" not in text
    (row,) = parse_table(text.replace(" 54996 / 65536", ""))
    assert numbers(row)[:3] == (46, 223.8, 96)
    without_power = layout_b([replace(pages.B910_BUSY, power="")])
    (row,) = parse_table(without_power)
    assert numbers(row) == (None, None, 96, 54996, 65536), "46 might be the power: it is neither"


@pytest.mark.parametrize("word", ["NA", "-", "Failed", "N/A", "", "nan", "inf", "1e9", "0x2d", "4 5"])
def test_what_is_no_number_is_absent(word: str) -> None:
    (row,) = parse_table(layout_a([replace(pages.P310_24G, temperature=word)]))
    assert row.temperature_celsius is None
    assert (row.memory_used_mb, row.memory_total_mb) == (1832, 21527)


def test_used_memory_that_cannot_be_is_absent() -> None:
    for used in ("NA", "-5", "21528"):
        (row,) = parse_table(layout_a([replace(pages.P310_24G, memory=(used, "21527"))]))
        assert (row.memory_used_mb, row.memory_total_mb) == (None, 21527)


GARBAGE = st.sampled_from([pages.NO_DRIVER.strip(), "", "[WARNING]The driver may be damaged", "| 3 |", "+==+", "||||"])
SPOILT = st.sampled_from(["", " NA ", " - ", "?", " / ", " NA / NA "])


@st.composite
def damaged_tables(draw: st.DrawFn) -> tuple[str, list[ChipRow], set[tuple[int, int]]]:
    """A table with lines lost, cut, doubled or spoilt, what it said, and the chips of which no line was touched."""
    layout, chips = draw(
        st.sampled_from(
            [
                (layout_a, [*pages.DUO, pages.P310_24G, pages.P310_HOT]),
                (layout_a, [pages.B310_20T]),
                (layout_b, [pages.B910_IDLE, pages.B910_BUSY]),
                (layout_b_prime, list(pages.A3_DIES)),
                (layout_c, [pages.A5, replace(pages.A5, npu=7, temperature="51")]),
            ]
        )
    )
    truth = parse_table(layout(chips))
    lines = layout(chips).splitlines()
    touched: set[int] = set()
    made: list[str] = []
    for number, line in enumerate(lines):
        rule = not re.search(r"[0-9A-Za-z]", line)
        what = draw(st.sampled_from(["keep"] * 8 + ["drop", "cut", "double", "spoil", "noise"]))
        if rule or what == "keep":  # a rule that is lost would make lines of two chips look like those of one
            made.append(line)
            continue
        if what == "noise":
            noise = draw(GARBAGE)
            made += [noise, line]
            if noise[:1] in ("|", "+"):
                touched |= {number - 1, number}
            continue
        touched.add(number)
        if what == "cut":
            made.append(line[: draw(st.integers(0, len(line) - 1))])
        elif what == "double":
            made += [line, line]
        elif what == "spoil":
            cells = line.split("|")
            cells[draw(st.integers(0, len(cells) - 1))] = draw(SPOILT)
            made.append("|".join(cells))
    headers = {number for number, line in enumerate(lines) if "Temp(C)" in line or "Memory-Usage" in line}
    end = next((number for number, line in enumerate(lines) if "Process id" in line), len(lines))
    starts = [number for number, line in enumerate(lines[:end]) if number > max(headers) and line[0] == "|"][::2]
    whole = {
        (row.npu_id, row.chip_id)
        for row, start in zip(truth, starts, strict=True)
        if not touched & {start, start + 1} and not touched & headers
    }
    return "\n".join(made), truth, whole


@given(damaged_tables())
def test_damage_keeps_what_is_right_and_invents_nothing(case: tuple[str, list[ChipRow], set[tuple[int, int]]]) -> None:
    text, truth, whole = case
    true = {(row.npu_id, row.chip_id): row for row in truth}
    found = {(row.npu_id, row.chip_id): row for row in parse_table(text)}
    assert whole <= found.keys() <= true.keys()
    for key, row in found.items():
        if key in whole:
            assert row == true[key]
            continue
        for field in fields(ChipRow):
            if field.name not in ("name", "health", "has_hbm"):  # words; what was put into a cell may stand in them
                assert getattr(row, field.name) in (None, getattr(true[key], field.name)), field.name


@given(st.text(alphabet="|+-=/ .:0123456789NPU TempC()%AIoreHBMsgdvChip\n", max_size=400))
def test_no_text_breaks_a_parser(text: str) -> None:
    for row in parse_table(text):
        assert isinstance(row, ChipRow)
    parse_mapping(text)
    parse_page(text, 0)
    parse_page(text, 1, whole_card=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (pages.MAPPING_DUO, {(2, 0): 0, (2, 1): 1}),
        (pages.MAPPING_910B, {(0, 0): 1, (1, 0): 0}),
        (pages.MAPPING_A3, {(0, 0): 0, (0, 1): 1}),
        (pages.MAPPING_950, {(3, 0): 2}),
        ("NPU ID  Chip ID  Chip Logic ID  Chip Name\n0 0 N/A 910B\n", {}),
        (pages.NOT_INITIALISED, {}),
    ],
)
def test_logical_ids(text: str, expected: dict[tuple[int, int], int]) -> None:
    assert parse_mapping(text) == expected


def test_the_common_page_gives_each_chip_its_own_and_the_board_the_rest() -> None:
    first = parse_page(pages.COMMON_DUO, 0, whole_card=True)
    second = parse_page(pages.COMMON_DUO, 1, whole_card=True)
    assert (first.chip["aicorecurfreq(mhz)"], second.chip["aicorecurfreq(mhz)"]) == ("960", "1080")
    assert first.board == second.board == {"temperature(c)": "41", "npureal-timepower(w)": "13.4"}
    assert "npureal-timepower(w)" not in second.chip
    assert parse_page(pages.COMMON_DUO, 5, whole_card=True).chip == {}


def test_the_controllers_power_is_nobodys_when_its_title_is_lost() -> None:
    text = pages.COMMON_DUO.replace("\tChip Name                      : mcu\n", "")
    page = parse_page(text, 1, whole_card=True)
    assert page.board == {}
    assert "npureal-timepower(w)" not in page.chip
    assert page.chip["temperature(c)"] == "47"


def test_chips_whose_ids_are_lost_are_not_mixed_up() -> None:
    text = re.sub(r"\tChip ID .*\n", "", pages.COMMON_DUO)
    assert parse_page(text, 0, whole_card=True).chip == {}
    first_lost = pages.COMMON_DUO.replace("\tChip ID                        : 0\n", "")
    assert parse_page(first_lost, 0, whole_card=True).chip == {}
    assert parse_page(first_lost, 1, whole_card=True).chip["temperature(c)"] == "47"


def test_a_chip_without_an_id_has_its_lines_at_the_top() -> None:
    assert parse_page(pages.COMMON_950, 0, whole_card=True).chip["npureal-timepower(w)"] == "298.6"


def test_a_page_of_another_chip_is_not_believed() -> None:
    assert parse_page(pages.USAGES_310P, 0).chip["ddrbandwidthusagerate(%)"] == "51"
    assert parse_page(pages.USAGES_310P, 1).chip == {}


def test_board_sensors_of_the_temperature_page() -> None:
    page = parse_page(pages.TEMP_SERVER, 0)
    assert page.chip == {"nputemperature(c)": "46"}
    assert page.board == {"lm75a_te(c)": "Failed", "lm75b_te(c)": "39"}


@pytest.mark.parametrize(
    ("text", "code", "unusable"),
    [(pages.NOT_INITIALISED, -8005, True), (pages.HELD_ELSEWHERE, -8020, True), (pages.UNSUPPORTED, None, False)],
)
def test_failure_texts(text: str, code: int | None, unusable: bool) -> None:
    assert return_code(text) == code
    assert parse_table(text) == []
    assert code is None or is_unusable(code) == unusable
    assert code is None or "a code without" not in call_error(code)


def test_fault_events_in_words() -> None:
    assert event_codes("80E20207 0x80de0207, 0 NA zz") == ["80E20207", "80DE0207"]
    assert event_codes("NA") == []
    assert "SoC over temperature" in event_meaning("80E20207")
    assert "0x12345678" in event_meaning("12345678")
