"""The table of `npu-smi info`: layout A for chips without HBM, B and B' for those with it. Columns are the driver's."""

from typing import Any

Facts = dict[str, Any]
Readings = dict[str, Any]

VERSION = "25.2.0"
_SOFTWARE = f"{VERSION} (simulated)"
_MIB = 2**20

_A_RULES = (31, 17, 54)
_A_HEADER = (
    "| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |",
    "| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |",
)
_A_PROCESSES = (
    "| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |"
)
_B_RULES = (27, 15, 53)
_B_HEADER = "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |"
_B_CHIPS = {
    "B": "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)         |",
    "B'": "| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)         |",
}
_B_PROCESSES = "| NPU     Chip              | Process id    | Process name             | Process memory(MB)       |"


def whole(facts: Facts, readings: dict[int, Readings]) -> str:
    """The table of all chips in ``readings``, by their number on the board."""
    cards: dict[int, list[tuple[int, int]]] = {}
    for index in readings:
        npu, place = facts["npu_ids"][index]
        cards.setdefault(npu, []).append((place, index))
    make = _layout_a if facts["layout"] == "A" else _layout_b
    return "\n".join(make(facts, cards, readings)) + "\n"


def bus_id(facts: Facts, index: int) -> str:
    """A PCIe address; the chips of a card share it."""
    first = 0x01 if facts["layout"] == "A" else 0x9D
    card = next(number for number, chips in enumerate(facts["heatsinks"]) if index in chips)
    return f"0000:{first + 2 * card:02X}:00.0"


def _layout_a(facts: Facts, cards: dict[int, list[tuple[int, int]]], readings: dict[int, Readings]) -> list[str]:
    double, single = _rule(_A_RULES, "="), _rule(_A_RULES, "-")
    out = ["+" + "-" * 104 + "+", f"| npu-smi {VERSION:<40} Version: {_SOFTWARE:<44} |", single, *_A_HEADER, double]
    for npu, chips in cards.items():
        for place, index in chips:
            said = readings[index]
            out += [_a_first(facts, npu, said), _a_second(facts, place, index, said), single]
        out[-1] = double
    if facts["kind"].startswith("310b"):
        return out  # these show no processes
    out += [single, _A_PROCESSES, double]
    return out + _processes(cards, readings, (22, 15, 25), double)


def _a_first(facts: Facts, npu: int, said: Readings) -> str:
    power = {"card": "NA", "none": "0.0"}.get(facts["power"]) or f"{said['power_watts']:.1f}"
    used, total = said["hugepages_used"], said["hugepages_total"]
    name, celsius = facts["chip_name"], _whole(said["temperature_celsius"])
    return f"| {npu:<7} {name:<22}| {said['health']:<15} | {power:<12} {celsius:<17} {used:<6}/ {total:<13} |"


def _a_second(facts: Facts, place: int, index: int, said: Readings) -> str:
    bus = f"{bus_id(facts, index):<15}" if facts["on_pcie"] else f"{'NA':<15}"
    busy = _whole(said["utilization_percent"])
    used, total = _mib(said, "used"), _mib(said, "total")
    return f"| {place:<7} {index:<22}| {bus} | {busy:<12} {used:<5}/ {total:<32} |"


def _layout_b(facts: Facts, cards: dict[int, list[tuple[int, int]]], readings: dict[int, Readings]) -> list[str]:
    double, single = _rule(_B_RULES, "="), _rule(_B_RULES, "-")
    header = [single, _B_HEADER, _B_CHIPS[facts["layout"]], double]
    out = ["+" + "-" * 97 + "+", f"| npu-smi {VERSION:<24} Version: {_SOFTWARE:<53} |", *header]
    for npu, chips in cards.items():
        for place, index in chips:
            said = readings[index]
            out += [_b_first(facts, npu, place, said), _b_second(facts, place, index, said), "+" + "-" * 97 + "+"]
        out[-1] = double
    out += [single, _B_PROCESSES, double]
    return out + _processes(cards, readings, (18, 13, 24), double)


def _processes(
    cards: dict[int, list[tuple[int, int]]], readings: dict[int, Readings], widths: tuple[int, int, int], rule: str
) -> list[str]:
    """The rows of the process table; ``widths`` of the chip, the process and its memory, ``rule`` under each card."""
    chip, process, memory = widths
    out = []
    for npu, chips in cards.items():
        rows = [
            f"| {npu:<7} {place:<{chip}}| {pid:<{process}} | {name[:24]:<24} | {held // _MIB:<{memory}} |"
            for place, index in chips
            for pid, name, held in readings[index]["processes"]
        ]
        idle = f"| No running processes found in NPU {npu:<7}"
        out += rows or [idle.ljust(len(rule) - 1) + "|"]
        out.append(rule)
    return out


def _b_first(facts: Facts, npu: int, place: int, said: Readings) -> str:
    second_die = facts["layout"] == "B'" and place == 1
    power = "-" if second_die else f"{said['power_watts']:.1f}"
    used, total = said["hugepages_used"], said["hugepages_total"]
    name, celsius = facts["chip_name"], _whole(said["temperature_celsius"])
    return f"| {npu:<5} {name:<20}| {said['health']:<13} | {power:<11} {celsius:<17} {used:<6}/ {total:<13} |"


def _b_second(facts: Facts, place: int, index: int, said: Readings) -> str:
    chip = f"{place:<5} {index:<20}" if facts["layout"] == "B'" else f"{place:<26}"
    busy, used, total = _whole(said["utilization_percent"]), _mib(said, "used"), _mib(said, "total")
    # Memory-Usage is always 0 / 0 here: the memory is HBM.
    return f"| {chip}| {bus_id(facts, index):<13} | {busy:<11} {0:<5}/ {0:<10} {used:<6}/ {total:<13} |"


def _rule(widths: tuple[int, ...], mark: str) -> str:
    return "+" + "+".join(mark * width for width in widths) + "+"


def _whole(value: float) -> int:
    return int(max(-(2**31), min(2**31 - 1, round(value))))


def _mib(said: Readings, what: str) -> int:
    return int(said[f"memory_{what}_bytes"] // _MIB)
