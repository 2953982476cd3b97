"""Event ids a chip can raise, as its fault tables list them, and the health that each means."""

from typing import NamedTuple

SOC_HOT = 0x80E20207
HBM_HOT = 0x80E00209
HBM_HOT_CELSIUS = 95.0

_WORDS = ("OK", "Warning", "Alarm", "Critical")


class Alarm(NamedTuple):
    """``level`` 1 to 3 is minor, major, critical."""

    level: int
    text: str


ALARMS: dict[int, Alarm] = {
    SOC_HOT: Alarm(1, "SoC over temperature"),
    0x80DE0207: Alarm(1, "DDR over temperature"),
    HBM_HOT: Alarm(1, "HBM over temperature"),
    0x80E0020B: Alarm(3, "HBM fatal temperature"),
    0x80E01801: Alarm(2, "HBM multi-bit ECC error"),
    0x40F84E00: Alarm(3, "Card dropped"),
    0x80FA4E00: Alarm(3, "Task scheduler heartbeat lost"),
    0x8C084E00: Alarm(2, "Device-side daemon heartbeat abnormal"),
}
_UNKNOWN = Alarm(2, "Unknown event")


def alarm_of(code: int) -> Alarm:
    """What a code means; one that no table lists is a major one."""
    return ALARMS.get(code, _UNKNOWN)


def health_word(codes: list[int], in_good_health: str) -> str:
    """The word `npu-smi` shows. Some boards say Alarm ``in_good_health``; nothing less than that is shown then."""
    level = max((alarm_of(code).level for code in codes), default=0)
    return _WORDS[max(level, _WORDS.index(in_good_health))]
