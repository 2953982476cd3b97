"""DCMI's return codes and the chips' fault events in words, with what to do.

Return codes: the error codes of the DCMI reference. Events: MindCluster's fault table (``faultCode.json``,
``kg-config.json``), only those a governor or its operator has to act on.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallError:
    """What a return code means. ``unusable``: nothing changes by asking again soon."""

    meaning: str
    unusable: bool = False


NOT_SUPPORTED = -8255
NOT_READY = -8012
NO_SUCH_DEVICE = (-8007, -8008)

CALL_ERRORS: dict[int, CallError] = {
    -8001: CallError("a parameter is wrong"),
    -8002: CallError("not permitted: run as a user of the group HwHiAiUser, or as root in a container", True),
    -8005: CallError(
        "the driver does not answer: usually no access to /dev/davinci* and /dev/davinci_manager from here, or a "
        "driver that is not loaded",
        True,
    ),
    -8006: CallError("the driver timed out"),
    -8007: CallError("there is no such device"),
    -8008: CallError("there is no such device"),
    NOT_READY: CallError("the device is not ready: it may have dropped off the bus"),
    -8013: CallError("not supported in a container", True),
    -8020: CallError(
        "the device is held by another container: read it there, or share it with `npu-smi set -t device-share -i N "
        "-c M -d 1`",
        True,
    ),
    NOT_SUPPORTED: CallError("not supported by this chip"),
}


def call_error(code: int) -> str:
    """A return code with its meaning."""
    known = CALL_ERRORS.get(code)
    return f"{code}: {known.meaning}" if known else f"{code}: a code without a published meaning"


def is_unusable(code: int) -> bool:
    known = CALL_ERRORS.get(code)
    return known is not None and known.unusable


EVENTS: dict[int, str] = {
    0x80E20207: "SoC over temperature: work is reduced, serving goes on",
    0x80DE0207: "DDR over temperature: work is reduced, serving goes on",
    0x80E00209: "HBM above 95 °C: work is reduced",
    0x80E0020B: "HBM at a fatal temperature: stop the NPU and look at its cooling",
    0x80E01801: "HBM multi-bit ECC error: restart the worker",
    0x40F84E00: "heartbeat between boards lost, the card may have dropped: reset it",
    0x80FA4E00: "the task scheduler's heartbeat is lost: reset the chip",
    0x8C084E00: "heartbeat of the device's daemon abnormal: drain, then reset the chip",
}

_HEX = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{1,8})")


def event_codes(text: str) -> list[str]:
    """The fault events in a list such as ``80E20207 0x80DE0207``, as eight hexadecimal digits; [] for ``NA``."""
    found = (_HEX.fullmatch(part) for part in text.replace(",", " ").split())
    codes = [int(match[1], 16) for match in found if match]
    return [f"{code:08X}" for code in dict.fromkeys(codes) if code]


def event_meaning(code: str) -> str:
    """An event with its meaning, for a person."""
    meaning = EVENTS.get(int(code, 16))
    return f"0x{code} {meaning}" if meaning else f"0x{code} (see the vendor's list of fault events)"
