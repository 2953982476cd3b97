"""What npu-smi prints: its table in every layout, with the header texts and row formats of the driver's own source, and
pages as they stand in public issue threads and manuals. And a stand-in tool that prints them.

Rows come from environment dumps in public issues; the comment beside each says of what.
"""

# ruff: noqa: E501 (lines are as wide as the tool prints them)

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

WIDE_RULE = "+" + "-" * 31 + "+" + "-" * 17 + "+" + "-" * 54 + "+"
RULE = "+" + "-" * 27 + "+" + "-" * 15 + "+" + "-" * 53 + "+"


@dataclass(frozen=True)
class Chip:
    """What a chip's two lines show, as texts."""

    npu: int
    name: str
    health: str
    power: str
    temperature: str
    hugepages: tuple[str, str]
    chip: int
    bus: str
    aicore: str
    memory: tuple[str, str]
    device: int = 0
    hbm: tuple[str, str] = ("0", "0")


def layout_a(chips: Iterable[Chip], version: str = "25.2.0") -> str:
    """310, 310P, 310B: no HBM; the second line names the logical device."""
    lines = [
        f"| npu-smi {version:<40} Version: {version:<44} |",
        WIDE_RULE,
        "| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |",
        "| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |",
        WIDE_RULE.replace("-", "="),
    ]
    for c in chips:
        first = f"{c.power:<12} {c.temperature:<17} {c.hugepages[0]:<6}/ {c.hugepages[1]:<13}"
        second = f"{c.aicore:<12} {c.memory[0]:<5}/ {c.memory[1]:<32}"
        lines += [f"| {c.npu:<7} {c.name:<22}| {c.health:<15} | {first} |"]
        lines += [f"| {c.chip:<7} {c.device:<22}| {c.bus:<15} | {second} |", WIDE_RULE]
    lines[-1] = WIDE_RULE.replace("-", "=")
    lines += [
        WIDE_RULE,
        "| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |",
        WIDE_RULE.replace("-", "="),
        *(f"| No running processes found in NPU {c.npu:<7}" + " " * 62 + "|" for c in chips),
        "| 2       0                     | 485946          | python3                  | 5175                      |",
    ]
    return "\n".join(lines) + "\n"


def layout_b(chips: Iterable[Chip], version: str = "23.0.2.1", physical_ids: bool = False) -> str:
    """910B: HBM; with physical ids the A3 (B')."""
    second_title = "Chip  Phy-ID" if physical_ids else "Chip"
    lines = [
        f"| npu-smi {version:<24} Version: {version:<53} |",
        RULE,
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |",
        f"| {second_title:<26}| Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)         |",
        RULE.replace("-", "="),
    ]
    for c in chips:
        chip = f"{c.chip:<5} {c.device:<20}" if physical_ids else f"{c.chip:<26}"
        first = f"{c.power:<11} {c.temperature:<17} {c.hugepages[0]:<6}/ {c.hugepages[1]:<13}"
        second = f"{c.aicore:<11} {c.memory[0]:<5}/ {c.memory[1]:<10} {c.hbm[0]:<6}/ {c.hbm[1]:<13}"
        lines += [f"| {c.npu:<5} {c.name:<20}| {c.health:<13} | {first} |", f"| {chip}| {c.bus:<13} | {second} |", RULE]
    lines += [
        "| NPU     Chip              | Process id    | Process name       | Process memory(MB)    | Process id in container |",
        RULE.replace("-", "="),
        "| 0       0                 | 485946        | pytest             | 5175                  | NA                      |",
    ]
    return "\n".join(lines) + "\n"


def layout_c(chips: Iterable[Chip], version: str = "26.0.rc2") -> str:
    """950: the id in a cell of its own, no chip ids."""
    rule = "+--------+------------------+---------------+-----------------------------------------------------+"
    lines = [
        f"| npu-smi {version:<40} Version: {version:<37} |",
        rule,
        "| NPU ID | Name             | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |",
        "|        |                  | Bus-Id        | NPU Util(%) Memory-Usage(MB)  HBM-Usage(MB)         |",
        rule.replace("-", "="),
    ]
    for c in chips:
        first = f"{c.power:<11} {c.temperature:<17} {c.hugepages[0]:<6}/ {c.hugepages[1]:<13}"
        second = f"{c.aicore:<11} {c.memory[0]:<5}/ {c.memory[1]:<10} {c.hbm[0]:<6}/ {c.hbm[1]:<13}"
        lines += [f"| {c.npu:<7}| {c.name:<17}| {c.health:<13} | {first} |"]
        lines += [f"|{'':8}|{'':18}| {c.bus:<13} | {second} |", rule]
    return "\n".join(lines) + "\n"


def _a(
    npu: int,
    name: str,
    health: str,
    first: tuple[str, str, str, str],
    ids: tuple[int, int],
    bus: str,
    memory: tuple[str, str],
) -> Chip:
    power, temperature, used, total = first
    return Chip(npu, name, health, power, temperature, (used, total), ids[0], bus, "0", memory, device=ids[1])


# 310P3 Duo 96G, 25.2.0: two chips under one NPU id (Syllo/nvtop#421); ".." where the thread leaves the number out.
DUO = (
    _a(2, "310P3", "OK", ("NA", "45", "0", "0"), (0, 0), "0000:01:00.0", ("1529", "44280")),
    _a(2, "310P3", "OK", ("NA", "..", "0", "0"), (1, 1), "0000:01:00.0", ("1412", "43693")),
)
P310_24G = _a(24, "310P3", "OK", ("NA", "29", "0", "0"), (0, 0), "0000:01:00.0", ("1832", "21527"))  # 23.0.0
P310_2410 = _a(1, "310P3", "OK", ("NA", "47", "0", "0"), (0, 0), "0000:01:00.0", ("1894", "44215"))  # 24.1.0.1
P310_HOT = _a(224, "310P3", "OK", ("NA", "71", "0", "0"), (0, 0), "0000:01:00.0", ("1848", "21525"))  # 25.2.3
P310_255 = _a(224, "310P3", "OK", ("NA", "71", "0", "0"), (0, 0), "0000:01:00.0", ("1448", "44278"))  # 25.5.1, Duo
P310_FULL = _a(2, "310P3", "OK", ("NA", "40", "8728", "8728"), (0, 0), "0000:01:00.0", ("19435", "21527"))  # 25.2.1
B310_ORANGE_PI = _a(0, "310B4", "Alarm", ("0.0", "65", "15", "15"), (0, 0), "NA", ("3628", "15609"))  # 23.0.0
B310_20T = _a(0, "310B1", "OK", ("10.4", "66", "15", "15"), (0, 0), "NA", ("957", "10810"))  # 23.0.rc3, manual
B310_2413 = _a(0, "310B", "OK", ("7.6", "42", "15", "1304"), (0, 0), "NA", ("1003", "10810"))  # 24.1.rc3, manual
B310_EP = _a(0, "310B1", "Alarm", ("0.0", "49", "15", "15"), (0, 0), "0000:11:00.0", ("600", "7578"))  # 23.0.5
NONE = ("0", "0")
B910_2C = Chip(0, "910B2C", "OK", "88.6", "51", NONE, 0, "0000:5A:00.0", "0", NONE, hbm=("20701", "65536"))  # 23.0.2.1
B910_IDLE = Chip(0, "910B3", "OK", "93.6", "40", NONE, 0, "0000:C2:00.0", "0", NONE, hbm=("3380", "65536"))  # #942
B910_BUSY = Chip(1, "910B3", "OK", "223.8", "46", NONE, 0, "0000:C3:00.0", "96", NONE, hbm=("54996", "65536"))
A3_DIES = (  # 25.3.rc1 (#5188): the second die has no power of its own
    Chip(0, "Ascend910", "OK", "167.7", "40", NONE, 0, "0000:9D:00.0", "0", NONE, 0, ("3172", "65536")),
    Chip(0, "Ascend910", "OK", "-", "40", NONE, 1, "0000:9F:00.0", "0", NONE, 1, ("2880", "65536")),
)
P310_IN_B = Chip(0, "310P3", "OK", "28.5", "44", NONE, 0, "0000:01:00.0", "3", ("1832", "21527"))  # as in #1141
A5 = Chip(3, "Ascend950DT", "OK", "120.0", "45", NONE, 0, "NA", "20", NONE, hbm=("2048", "8192"))

COMMON_DUO = """\
\tNPU ID                         : 2
\tChip Count                     : 2

\tChip ID                        : 0
\tMemory Usage Rate(%)           : 4
\tAicore Usage Rate(%)           : 0
\tAicore Freq(MHZ)               : 1080
\tAicore curFreq(MHZ)            : 960
\tTemperature(C)                 : 43

\tChip ID                        : 1
\tMemory Usage Rate(%)           : 4
\tAicore Usage Rate(%)           : 12
\tAicore Freq(MHZ)               : 1080
\tAicore curFreq(MHZ)            : 1080
\tTemperature(C)                 : 47

\tChip Name                      : mcu
\tTemperature(C)                 : 41
\tNPU Real-time Power(W)         : 13.4
"""
COMMON_910B = """\
\tNPU ID                         : 1
\tChip Count                     : 1

\tChip ID                        : 0
\tMemory Usage Rate(%)           : 0
\tHBM Usage Rate(%)              : 4
\tAicore Usage Rate(%)           : 0
\tAicore Freq(MHZ)               : 1800
\tAicore curFreq(MHZ)            : 800
\tAicore Count                   : 24
\tTemperature(C)                 : 46
\tNPU Real-time Power(W)         : 93.4

\tChip Name                      : mcu
\tTemperature(C)                 : 38
"""
COMMON_310B = """\
\tNPU ID                         : 0
\tChip Count                     : 1

\tChip ID                        : 0
\tMemory Usage Rate(%)           : 23
\tAicore Usage Rate(%)           : 0
\tTemperature(C)                 : 65
\tRated Power Dissipation(W)     : 24.0

\tChip Name                      : MCU
\tTemperature(C)                 : NA
\tPower Dissipation(W)           : 0.0
"""
COMMON_950 = """\
\tNPU ID                         : 3
\tHBM Usage Rate(%)              : 3
\tAicore Usage Rate(%)           : 0
\tAicore Freq(MHZ)               : 1650
\tAicore curFreq(MHZ)            : 100
\tAicore Count                   : 32
\tTemperature(C)                 : 65
\tNPU Real-time Power(W)         : 298.6
"""
USAGES_310P = """\
\tNPU ID                         : 2
\tChip Count                     : 2

\tDDR Capacity(MB)               : 21534
\tDDR Usage Rate(%)              : 4
\tDDR Hugepages Total(page)      : 0
\tDDR Hugepages Usage Rate(%)    : 0
\tAicore Usage Rate(%)           : 0
\tAicpu Usage Rate(%)            : 0
\tCtrlcpu Usage Rate(%)          : 13
\tVectorcore Usage Rate(%)       : 0
\tDDR Bandwidth Usage Rate(%)    : 51
\tDVPP VDEC Usage Rate(%)        : 0
\tChip ID                        : 0
"""
USAGES_910B = """\
\tDDR Capacity(MB)               : 0
\tDDR Usage Rate(%)              : 0
\tHBM Capacity(MB)               : 65536
\tHBM Usage Rate(%)              : 5
\tAicore Usage Rate(%)           : 0
\tAivector Usage Rate(%)         : 0
\tCtrlcpu Usage Rate(%)          : 6
\tDDR Bandwidth Usage Rate(%)    : 0
\tHBM Bandwidth Usage Rate(%)    : 37
\tNPU Utilization(%)             : 0
\tAicube Usage Rate(%)           : 0
"""
TEMP_SERVER = """\
\tNPU Temperature (C)            : 46
\tLM75A_TE (C)                   : Failed
\tLM75B_TE (C)                   : 39
"""
POWER_910B = "\tNPU Real-time Power(W)         : 93.4\n"
MEMORY_910B = """\
\tDDR Capacity(MB)               : 0
\tHBM Capacity(MB)               : 65536
\tHBM Clock Speed(MHz)           : 1600
\tHBM Temperature(C)             : 61
\tHBM Manufacturer ID            : 0x56
"""
HEALTH_OK = """\
\tHealth Status                  : OK
\tError Code                     : NA
\tError Information              : NA
"""
HEALTH_ALARM = """\
\tHealth Status                  : Alarm
\tError Code                     : 80E20207 80DE0207
\tError Information              : SOC over temperature
\t                               : DDR over temperature
"""
MAPPING_DUO = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t2                              0                              0                              Ascend 310P3
\t2                              1                              1                              Ascend 310P3
\t2                              2                              -                              Mcu
"""
MAPPING_910B = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t0                              0                              1                              Ascend 910B3
\t0                              1                              -                              Mcu
\t1                              0                              0                              Ascend 910B3
\t1                              1                              -                              Mcu
"""
MAPPING_A3 = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Phy-ID                    Chip Name
\t0                              0                              0                              4                              Ascend910
\t0                              1                              1                              5                              Ascend910
\t0                              2                              -                              -                              Mcu
"""
MAPPING_950 = """\
\tNPU ID                         Slot ID                        Chip ID                        Chip Phy-ID                    Chip Name
\t3                              7                              0                              2                              Ascend950DT
"""
NO_DRIVER = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n"
NOT_INITIALISED = NO_DRIVER + "dcmi module initialize failed. ret is -8005\n"
HELD_ELSEWHERE = "dcmi model initialized failed, because the device is used. ret is -8020\n"
UNSUPPORTED = "This device does not support querying power.\n"
NO_CARD = "There is no NPU card on this server.\n"


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class StandInTool:
    """An executable ``npu-smi`` that prints what it was told to, notes each start, and hangs when asked to.

    It is a shell script whose hang is a child of its own, as where a site wraps the tool: killing it alone is not
    enough.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "npu-smi"
        (folder / "answers").mkdir(parents=True)
        self.path.write_text(
            f"""#!/bin/sh
echo "$$ $*" >> "{folder}/starts"
if [ -e "{folder}/hang" ]; then trap '' TERM INT HUP; sleep 600; fi
if [ -e "{folder}/slow" ]; then
  mkdir "{folder}/busy" || touch "{folder}/overlapped"
  sleep "$(cat "{folder}/slow")"
  rmdir "{folder}/busy"
fi
answer="{folder}/answers/$(printf %s "$*" | tr ' ' _)"
cat "$answer" 2>/dev/null || echo "This device does not support this."
exit "$(cat "$answer.code" 2>/dev/null || echo 0)"
"""
        )
        self.path.chmod(0o755)

    def answer(self, args: str, text: str, code: int = 0) -> None:
        """Let ``npu-smi ARGS`` print ``text`` and end with ``code``."""
        place = self.folder / "answers" / args.replace(" ", "_")
        draft = place.with_suffix(".new")
        draft.write_text(text)
        Path(f"{place}.code").write_text(str(code))
        draft.replace(place)

    def hang(self, on: bool = True) -> None:
        """Whether every start from now on hangs."""
        flag = self.folder / "hang"
        if on:
            flag.touch()
        else:
            flag.unlink(missing_ok=True)

    def slow(self, seconds: float) -> None:
        """Let every start from now on take this long, and note whether two ever overlap."""
        (self.folder / "slow").write_text(str(seconds))

    @property
    def overlapped(self) -> bool:
        return (self.folder / "overlapped").exists()

    def starts(self, args: str | None = None) -> list[str]:
        """The arguments of every start, or of those with ``args``."""
        return [line.split(" ", 1)[1] for line in self._lines() if args is None or line.split(" ", 1)[1] == args]

    def pids(self) -> list[int]:
        """The process ids of every start."""
        return [int(line.split()[0]) for line in self._lines()]

    def alive(self) -> list[int]:
        """The process ids of the starts that have not ended."""
        return [pid for pid in self.pids() if is_alive(pid)]

    def _lines(self) -> list[str]:
        place = self.folder / "starts"
        return place.read_text().splitlines() if place.exists() else []


def duo_tool(folder: Path) -> StandInTool:
    """A stand-in that shows a Duo card whose second chip is at 47 °C."""
    tool = StandInTool(folder)
    second = Chip(2, "310P3", "OK", "NA", "47", ("0", "0"), 1, "0000:01:00.0", "12", ("1412", "43693"), device=1)
    tool.answer("info", layout_a((DUO[0], second)))
    tool.answer("info -m", MAPPING_DUO)
    tool.answer("info -t common -i 2", COMMON_DUO)
    for chip in (0, 1):
        tool.answer(f"info -t usages -i 2 -c {chip}", re.sub(r"(Chip ID +: )0", rf"\g<1>{chip}", USAGES_310P))
        tool.answer(f"info -t power -i 2 -c {chip}", UNSUPPORTED, 1)
    return tool
