"""The stand-in `npu-smi`: the layouts, pages and failures of the real one, over a simulated board."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldplate_governor.board.client import BoardClient
from support import processes
from support.processes import Process

# Rows that real tools have printed, with the spacing of the driver's own formats.
ROW_310P = "| 2       310P3                 | OK              | NA           45                0     / 0             |"
CHIP_310P = "| 0       0                     | 0000:01:00.0    | 0            1529 / 44280                            |"
ROW_310B = "| 0       310B4                 | Alarm           | 0.0          65                15    / 15            |"
CHIP_310B = "| 0       0                     | NA              | 0            3628 / 15609                            |"
CHIP_910B = "| 0                         | 0000:9D:00.0  | 0           0    / 0          3380  / 65536         |"


class Tool:
    """One board and its tool."""

    def __init__(self, process: Process, address: str, path: Path) -> None:
        self.process = process
        self.board = BoardClient(address)
        self.path = path

    def run(self, *args: str, timeout_s: float = 20.0) -> tuple[str, int]:
        done = subprocess.run(
            [str(self.path), *args],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={"PATH": os.environ["PATH"]},
            check=False,
        )
        assert done.stderr == ""
        return done.stdout, done.returncode

    def shows(self, *args: str) -> str:
        text, code = self.run(*args)
        assert code == 0, text
        return text

    def page(self, kind: str, npu: int, chip: int | None = None) -> dict[str, str]:
        """Keys and values of a page; of a key that comes twice, the last."""
        where = ["-i", str(npu)] + ([] if chip is None else ["-c", str(chip)])
        pairs = (line.partition(":") for line in self.shows("info", "-t", kind, *where).splitlines())
        return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cp-smi-") as name:
        yield Path(name)


def make(folder: Path, chip: str, *args: str) -> Iterator[Tool]:
    with processes.board(f"--chip={chip}", f"--npu-smi-dir={folder / chip}", *args) as (process, address):
        tool = Tool(process, address, folder / chip / "npu-smi")
        yield tool
        tool.board.close()
        process.stop()
    assert not tool.path.exists(), "it goes with the board"


@pytest.fixture(scope="module")
def duo(folder: Path) -> Iterator[Tool]:
    yield from make(folder, "310p", "--count=3", "--start-temperature-celsius=45")


@pytest.fixture(scope="module")
def edge(folder: Path) -> Iterator[Tool]:
    yield from make(folder, "310b", "--start-temperature-celsius=65", "--ambient-celsius=55")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Tool]:
    yield from make(folder, "910b", "--count=2", "--start-temperature-celsius=46", "--ambient-celsius=41.9")


def test_a_310p_has_layout_a_without_power_of_chips(duo: Tool) -> None:
    lines = duo.shows("info").splitlines()
    assert lines[3].startswith("| NPU     Name                  | Health          | Power(W)     Temp(C)")
    assert re.sub("NA           4[0-9]", "NA           45", lines[6]) == ROW_310P
    assert lines[7] == CHIP_310P
    assert {len(line) for line in lines} == {106}
    assert [line.split()[1] for line in lines if "310P3" in line] == ["2", "2", "4"], "chips of a card share its id"
    assert sum("No running processes found in NPU" in line for line in lines) == 2
    assert "simulated" in lines[1]


def test_card_power_of_a_310p_is_in_the_block_of_its_controller(duo: Tool) -> None:
    chips, _, controller = duo.shows("info", "-t", "common", "-i", "2").partition(
        "Chip Name                      : mcu"
    )
    assert chips.count("Chip ID") == 2
    assert "Power" not in chips
    assert float(re.findall(r"NPU Real-time Power\(W\) +: ([0-9.]+)", controller)[0]) > 30
    assert "\tAicore curFreq(MHZ)            : 1080\n" in chips


def test_pages_of_a_310p(duo: Tool) -> None:
    assert duo.run("info", "-t", "power", "-i", "2", "-c", "0") == (
        "This device does not support querying power.\n",
        1,
    )
    assert duo.page("usages", 2, 1)["DDR Capacity(MB)"] == "44280"
    assert 40 <= int(duo.page("temp", 2, 0)["Temperature (C)"]) <= 46
    assert duo.page("memory", 4, 0)["Total DDR Capacity(MB)"] == "44280"
    assert duo.page("health", 2, 0) == {"Health Status": "OK", "Error Code": "NA", "Error Information": "NA"}
    assert duo.shows("info", "-t", "proc-mem", "-i", "2", "-c", "0") == "\tNo process in device.\n"
    mapping = [line.split() for line in duo.shows("info", "-m").splitlines()]
    assert mapping[1:4] == [
        ["2", "0", "0", "Ascend", "310P3"],
        ["2", "1", "1", "Ascend", "310P3"],
        ["2", "2", "-", "Mcu"],
    ]
    assert duo.shows("info", "-l").count("NPU ID") == 2


def test_processes_and_alarms_are_shown(duo: Tool) -> None:
    duo.board.post_step(1, 0.0, 0, held_bytes=3 << 30)
    rows = [line.split() for line in duo.shows("info").splitlines() if str(os.getpid()) in line]
    assert rows[0][1:3] == ["2", "1"]
    assert rows[0][-2] == "3072"
    assert f"Process id:{os.getpid()} Process name:" in duo.shows("info", "-t", "proc-mem", "-i", "2", "-c", "1")
    duo.board.poke("alarm", 1, code=0x80E20207)
    assert duo.page("health", 2, 1)["Error Code"] == "80E20207"
    assert "| Warning " in duo.shows("info")
    duo.board.poke("restore", 1)


def test_a_lost_chip_has_no_row_and_its_pages_fail(duo: Tool) -> None:
    duo.board.poke("lose", 2)
    assert duo.shows("info").count("310P3") == 2
    text, code = duo.run("info", "-t", "temp", "-i", "4", "-c", "0")
    assert (text, code) == ("dcmi module initialize failed. ret is -8012\n", -8012 & 0xFF)
    duo.board.poke("restore", 2)


@pytest.mark.parametrize(
    ("dcmi", "words"),
    [
        (-8005, "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi module initialize failed. ret is -8005\n"),
        (-8020, "dcmi model initialized failed, because the device is used. ret is -8020\n"),
    ],
)
def test_the_tool_fails_in_its_own_words(duo: Tool, dcmi: int, words: str) -> None:
    duo.board.poke("tool", 0, code=dcmi)
    assert duo.run("info") == (words, dcmi & 0xFF)
    duo.board.poke("restore", 0)


def test_a_hung_chip_hangs_the_tool(duo: Tool) -> None:
    duo.board.poke("hang", 0, seconds=60)
    with pytest.raises(subprocess.TimeoutExpired):
        duo.run("info", timeout_s=1.0)
    duo.board.poke("restore", 0)
    assert "310P3" in duo.shows("info")


def test_a_310b_says_alarm_and_no_power_in_good_health(edge: Tool) -> None:
    lines = edge.shows("info").splitlines()
    assert re.sub("0.0          6[0-9]", "0.0          65", lines[6]) == ROW_310B
    assert lines[7] == CHIP_310B
    assert len(lines) == 9, "no processes"
    common = edge.shows("info", "-t", "common", "-i", "0")
    assert "curFreq" not in common
    assert "Rated Power Dissipation(W)" in common
    assert edge.page("usages", 0, 0)["Memory Capacity(MB)"] == "15609"


def test_a_work_level_is_set_and_read_back(edge: Tool) -> None:
    assert (
        edge.shows("info", "-t", "nve-level", "-i", "0", "-c", "0") == "\tnve level                      : 8T_1.0GHz\n"
    )
    said = edge.shows("set", "-t", "nve-level", "-i", "0", "-c", "0", "-d", "1")
    assert "Status                         : OK" in said
    assert "The nve-level of the chip is set successfully." in said
    assert edge.page("nve-level", 0, 0) == {"nve level": "4T_1.0GHz"}
    edge.board.poke("ignore", 0)
    edge.shows("set", "-t", "nve-level", "-i", "0", "-c", "0", "-d", "0")
    assert edge.page("nve-level", 0, 0) == {"nve level": "4T_1.0GHz"}
    edge.board.poke("refuse", 0)
    text, code = edge.run("set", "-t", "nve-level", "-i", "0", "-c", "0", "-d", "0")
    assert code == 1
    assert "This device does not support setting nve-level." in text
    edge.board.poke("restore", 0)
    assert edge.run("set", "-t", "nve-level", "-i", "0", "-c", "0", "-d", "2") == ("Error parameter of -d\n", 1)


def test_a_910b_has_layout_b_and_its_memory_is_hbm(server: Tool) -> None:
    lines = server.shows("info").splitlines()
    assert "HBM-Usage(MB)" in lines[4]
    assert re.fullmatch(
        r"\| 0     910B3               \| OK            \| [0-9.]{4,5} +46 +0     / 0             \|", lines[6]
    )
    assert lines[7] == CHIP_910B
    assert {len(line) for line in lines} == {99}
    assert float(server.page("power", 1, 0)["NPU Real-time Power(W)"]) > 0
    memory = server.page("memory", 0, 0)
    assert (memory["HBM Capacity(MB)"], memory["DDR Capacity(MB)"]) == ("65536", "0")


def test_a_910_93_shows_power_once_for_two_dies(folder: Path) -> None:
    for tool in make(folder, "a3", "--count=2"):
        first, second = [line.split("|") for line in tool.shows("info").splitlines() if "Ascend910" in line]
        assert second[3].split()[0] == "-"
        assert float(first[3].split()[0]) >= 0
        assert "Phy-ID" in tool.shows("info")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("info", "-t", "nonsense", "-i", "2"), "Error parameter of -t"),
        (("info", "-t", "temp", "-i", "3"), "Error parameter of -i"),
        (("info", "-t", "temp", "-i", "2", "-c", "9"), "Error parameter of -c"),
        (("info", "-t", "nve-level", "-i", "2", "-c", "0"), "This device does not support querying nve-level."),
        (("set", "-t", "reset", "-i", "2", "-c", "0"), "Error parameter of -t"),
        ((), "Usage: npu-smi"),
    ],
)
def test_wrong_arguments_are_refused(duo: Tool, args: tuple[str, ...], words: str) -> None:
    text, code = duo.run(*args)
    assert code == 1
    assert words in text


def test_no_board_is_no_driver(folder: Path) -> None:
    done = subprocess.run(
        [str(processes.BIN / "coldplate-board"), "npu-smi", "info"],
        capture_output=True,
        text=True,
        env=processes.clean_environment(COLDPLATE_BOARD=f"unix:{folder}/none.sock"),
        check=False,
    )
    assert done.returncode == -8005 & 0xFF
    assert done.stdout.endswith("dcmi module initialize failed. ret is -8005\n")


def test_it_takes_no_other_tools_place(folder: Path) -> None:
    mine = folder / "mine"
    mine.mkdir()
    (mine / "npu-smi").write_text("the real one")
    done = processes.run("coldplate-board", f"--listen=unix:{folder}/x.sock", f"--npu-smi-dir={mine}")
    assert done.returncode == 2
    assert "is no stand-in: choose another folder" in done.stderr
    assert (mine / "npu-smi").read_text() == "the real one"
