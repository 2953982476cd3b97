"""The pages of `npu-smi info -t ...`, in the driver's own words: a tab, the key in 30 columns, a colon, the value."""

from collections.abc import Callable, Mapping
from typing import Any

from coldplate_governor.board.npu_smi_table import VERSION

Facts = dict[str, Any]
Readings = dict[str, Any]
Page = Callable[[Facts, Readings, int], "dict[str, object] | str | None"]

_MIB = 2**20
_AI_CORES = {"910b": 20, "a3": 24}


def lines(values: Mapping[str, object]) -> str:
    return "".join(f"\t{key:<30} : {value}\n" for key, value in values.items())


def listing(facts: Facts) -> str:
    """``info -l``."""
    cards: dict[int, int] = {}
    for npu, _ in facts["npu_ids"]:
        cards[npu] = cards.get(npu, 0) + 1
    count = "Card Count" if facts["kind"].startswith("310b") else "Total Count"
    out = lines({count: len(cards)}) + "\n"
    for npu, chips in cards.items():
        out += lines({"NPU ID": npu, "Chip Count": chips}) + "\n"
    return out


def mapping(facts: Facts) -> str:
    """``info -m``: which chip of which card is which logical device."""
    has_phy = facts["layout"] == "B'"
    names = ["NPU ID", "Chip ID", "Chip Logic ID", *(["Chip Phy-ID"] if has_phy else [])]
    out = [_columns([*names, "Chip Name"])]
    places = facts["npu_ids"]
    for index, (npu, place) in enumerate(places):
        name = facts["chip_name"] if has_phy else f"Ascend {facts['chip_name']}"
        out.append(_columns([npu, place, index, *([index] if has_phy else []), name]))
        if index + 1 == len(places) or places[index + 1][0] != npu:
            out.append(_columns([npu, place + 1, "-", *(["-"] if has_phy else []), "Mcu"]))
    return "".join(out)


def _columns(values: list[object]) -> str:
    return "\t" + " ".join(f"{value!s:<30}" for value in values).rstrip() + "\n"


def render(
    page: Page, facts: Facts, npu: int, count: int, readings: dict[int, Readings], *, whole_card: bool
) -> str | None:
    """A page of the chips in ``readings``, by their place on the card; None where the chip has no such page.

    Asked for a whole card, most pages end each chip's part with its id; ``common`` begins with it.
    """
    out = lines({"NPU ID": npu, "Chip Count": count}) if whole_card or page is _common else ""
    for place, said in readings.items():
        part = page(facts, said, place)
        if part is None:
            return None
        if isinstance(part, str):
            out += part
        elif page is _common:
            out += "\n" + lines({"Chip ID": place, **part})
        elif whole_card:
            out += "\n" + lines({**part, "Chip ID": place})
        else:
            out += lines(part)
    return out + _mcu(page, facts, next(iter(readings.values())))


def _mcu(page: Page, facts: Facts, said: Readings) -> str:
    """The card's own controller, which comes after the chips and is none of them."""
    if page is not _common:
        return ""
    celsius = round(said["board_temperature_celsius"])
    if facts["power"] == "card":
        card = said["card_power_watts"]
        return "\n" + lines({"Chip Name": "mcu", "Temperature(C)": celsius, "NPU Real-time Power(W)": f"{card:.1f}"})
    if facts["kind"].startswith("310b"):
        watts = said.get("power_watts", 0.0)
        return "\n" + lines({"Chip Name": "MCU", "Temperature(C)": celsius, "Power Dissipation(W)": f"{watts:.1f}"})
    return "\n" + lines({"Chip Name": "mcu", "Temperature(C)": celsius})


def _common(facts: Facts, said: Readings, place: int) -> dict[str, object]:
    share = _memory_percent(said)
    hbm = facts["layout"] != "A"
    out: dict[str, object] = {"Memory Usage Rate(%)": 0 if hbm else share}
    if hbm:
        out["HBM Usage Rate(%)"] = share
    out["Aicore Usage Rate(%)"] = round(said["utilization_percent"])
    if "frequency_mhz" in said:
        out |= {
            "Aicore Freq(MHZ)": round(said["rated_frequency_mhz"]),
            "Aicore curFreq(MHZ)": round(said["frequency_mhz"]),
        }
    if hbm:
        out["Aicore Count"] = _AI_CORES[facts["kind"]]
    out["Temperature(C)"] = round(said["temperature_celsius"])
    if facts["kind"].startswith("310b"):
        out["Rated Power Dissipation(W)"] = f"{said.get('power_watts', 0.0):.1f}"
    elif facts["power"] == "chip":
        out["NPU Real-time Power(W)"] = f"{said['power_watts']:.1f}"
    return out


def _usages(facts: Facts, said: Readings, place: int) -> dict[str, object]:
    share, total, busy = _memory_percent(said), said["memory_total_bytes"] // _MIB, round(said["utilization_percent"])
    pages, used = said["hugepages_total"], said["hugepages_used"]
    huge = used * 100 // pages if pages else 0
    if facts["layout"] != "A":
        return {
            "DDR Capacity(MB)": 0,
            "DDR Usage Rate(%)": 0,
            "DDR Hugepages Total(page)": 0,
            "DDR Hugepages Usage Rate(%)": 0,
            "HBM Capacity(MB)": total,
            "HBM Usage Rate(%)": share,
            "Aicore Usage Rate(%)": busy,
            "Aivector Usage Rate(%)": busy // 2,
            "Aicpu Usage Rate(%)": 0,
            "Ctrlcpu Usage Rate(%)": 0,
            "DDR Bandwidth Usage Rate(%)": 0,
            "HBM Bandwidth Usage Rate(%)": busy,
            "NPU Utilization(%)": busy,
            "Aicube Usage Rate(%)": busy,
        }
    before = "" if facts["kind"].startswith("310b") else "DDR "
    name = "Memory" if facts["kind"].startswith("310b") else "DDR"
    out: dict[str, object] = {
        f"{name} Capacity(MB)": total,
        f"{name} Usage Rate(%)": share,
        f"{before}Hugepages Total(page)": pages,
        f"{before}Hugepages Usage Rate(%)": huge,
        "Aicore Usage Rate(%)": busy,
        "Aicpu Usage Rate(%)": 0,
        "Ctrlcpu Usage Rate(%)": 0,
    }
    if name == "DDR":
        out["Vectorcore Usage Rate(%)"] = busy // 2
    out[f"{name} Bandwidth Usage Rate(%)"] = busy
    return out


def _temp(facts: Facts, said: Readings, place: int) -> dict[str, object]:
    key = "Temperature (C)" if facts["layout"] == "A" else "NPU Temperature (C)"
    return {key: round(said["temperature_celsius"])}


def _power(facts: Facts, said: Readings, place: int) -> dict[str, object] | None:
    return {"NPU Real-time Power(W)": f"{said['power_watts']:.1f}"} if facts["power"] == "chip" else None


def _memory(facts: Facts, said: Readings, place: int) -> dict[str, object]:
    total = said["memory_total_bytes"] // _MIB
    if facts["layout"] != "A":
        return {
            "DDR Capacity(MB)": 0,
            "DDR Clock Speed(MHz)": 0,
            "HBM Capacity(MB)": total,
            "HBM Clock Speed(MHz)": 1600,
            "HBM Temperature(C)": round(said["memory_temperature_celsius"]),
        }
    if facts["kind"].startswith("310b"):
        return {"Total Capacity(MB)": total, "Capacity(MB)": total, "Clock Speed(MHz)": 3200}
    return {"Total DDR Capacity(MB)": total, "DDR Capacity(MB)": total, "DDR Clock Speed(MHz)": 2133}


def _health(facts: Facts, said: Readings, place: int) -> dict[str, object]:
    return {
        "Health Status": said["health"],
        "Error Code": " ".join(said["error_codes"]) or "NA",
        "Error Information": " ".join(said["error_texts"]) or "NA",
    }


def _proc_mem(facts: Facts, said: Readings, place: int) -> str | None:
    if facts["kind"].startswith("310b"):
        return None
    rows = [
        f"\tProcess id:{pid} Process name:{name} Process memory(MB):{held // _MIB}\n"
        for pid, name, held in said["processes"]
    ]
    return "".join(rows) or "\tNo process in device.\n"


def _board(facts: Facts, said: Readings, place: int) -> dict[str, object]:
    return {
        "Product Name": f"{said['card']} (simulated)",
        "Software Version": VERSION,
        "Firmware Version": "7.7.0.6.236",
        "Compatibility": "OK",
    }


def _nve_level(facts: Facts, said: Readings, place: int) -> dict[str, object] | None:
    return {"nve level": said["work_level"]} if facts["levels"] else None


def _memory_percent(said: Readings) -> int:
    return int(said["memory_used_bytes"] * 100 // said["memory_total_bytes"])


PAGES: dict[str, Page] = {
    "common": _common,
    "usages": _usages,
    "temp": _temp,
    "power": _power,
    "memory": _memory,
    "health": _health,
    "proc-mem": _proc_mem,
    "board": _board,
    "nve-level": _nve_level,
}
