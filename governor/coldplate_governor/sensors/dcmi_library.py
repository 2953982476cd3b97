"""``libdcmi``, the chips' management library, through ctypes: what a driver may leave out is left out here, too.

Signatures and units follow ``dcmi_interface_api.h`` of the driver. Every symbol is optional: chips, drivers and
containers offer different ones. A call may hang in the driver and cannot be cancelled, so all of this belongs into a
process that can be killed.
"""

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int, c_int32, c_ubyte, c_uint32, c_uint64, c_ulong
from pathlib import Path
from typing import Any

from coldplate_governor.sensors.npu_faults import NOT_SUPPORTED, call_error

MAX_CARDS = 64
MAX_CODES = 128
_PLACES = (
    "/usr/local/dcmi/libdcmi.so",
    "/usr/local/Ascend/driver/lib64/driver/libdcmi.so",
    "/usr/local/Ascend/driver/lib64/common/libdcmi.so",
    "/usr/local/Ascend/driver/lib64/libdcmi.so",
    "/usr/lib64/libdcmi.so",
)
_LOW_POWER, _CLOCK_REDUCTION_CAUSE = 8, 9  # main and sub command of dcmi_get_device_info
_THERMAL_THRESHOLD = 9  # sensor id


class DcmiError(Exception):
    """A call returned ``code``; the text names the call and says what the code means."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} returned {call_error(code)}")
        self.code = code


class AicoreInfo(ctypes.Structure):
    """Rated and present clock, MHz."""

    _fields_ = (("freq", c_uint32), ("cur_freq", c_uint32))


class MemoryInfo(ctypes.Structure):
    """Memory of chips without HBM, MB; huge pages in KB each."""

    _fields_ = (
        ("memory_size", c_uint64),
        ("memory_available", c_uint64),
        ("freq", c_uint32),
        ("hugepagesize", c_ulong),
        ("hugepages_total", c_ulong),
        ("hugepages_free", c_ulong),
        ("utiliza", c_uint32),
        ("reserve", c_ubyte * 60),
    )


class HbmInfo(ctypes.Structure):
    """HBM: size and use in MB, temperature in °C, bandwidth in percent."""

    _fields_ = (
        ("memory_size", c_uint64),
        ("freq", c_uint32),
        ("memory_usage", c_uint64),
        ("temp", c_int32),
        ("bandwith_util_rate", c_uint32),
    )


class _SensorInfo(ctypes.Union):
    _fields_ = (("temp", ctypes.c_byte * 2), ("data", c_uint32 * 16))


_INT, _UINT = POINTER(c_int), POINTER(c_uint32)
_SIGNATURES: dict[str, Sequence[Any]] = {
    "dcmi_init": (),
    "dcmi_get_card_list": (_INT, _INT, c_int),
    "dcmi_get_device_id_in_card": (c_int, _INT, _INT, _INT),
    "dcmi_get_device_num_in_card": (c_int, _INT),
    "dcmi_get_device_logic_id": (_INT, c_int, c_int),
    "dcmi_get_device_temperature": (c_int, c_int, _INT),
    "dcmi_get_device_power_info": (c_int, c_int, _INT),
    "dcmi_mcu_get_power_info": (c_int, _INT),
    "dcmi_get_device_utilization_rate": (c_int, c_int, c_int, _UINT),
    "dcmi_get_device_frequency": (c_int, c_int, c_int, _UINT),
    "dcmi_get_device_aicore_info": (c_int, c_int, POINTER(AicoreInfo)),
    "dcmi_get_device_memory_info_v3": (c_int, c_int, POINTER(MemoryInfo)),
    "dcmi_get_device_hbm_info": (c_int, c_int, POINTER(HbmInfo)),
    "dcmi_get_device_health": (c_int, c_int, _UINT),
    "dcmi_get_device_errorcode_v2": (c_int, c_int, _INT, _UINT, c_uint32),
    "dcmi_get_device_sensor_info": (c_int, c_int, c_int, POINTER(_SensorInfo)),
    "dcmi_get_device_info": (c_int, c_int, c_int, c_uint32, ctypes.c_void_p, _UINT),
}


class Dcmi:
    """The library at ``path``, initialised. Every method raises DcmiError; a symbol that is missing is NOT_SUPPORTED.

    Raises OSError when it cannot be loaded, DcmiError when it cannot be initialised.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._functions: dict[str, Any] = {}
        for name, signature in _SIGNATURES.items():
            function = getattr(self._library, name, None)
            if function is not None:
                function.argtypes, function.restype = signature, c_int
                self._functions[name] = function
        self._call("dcmi_init")

    def cards(self) -> list[int]:
        """Ids of the cards."""
        count, ids = c_int(), (c_int * MAX_CARDS)()
        self._call("dcmi_get_card_list", byref(count), ids, MAX_CARDS)
        return list(ids[: max(0, min(count.value, MAX_CARDS))])

    def chips_and_controller(self, card: int) -> tuple[int, int | None]:
        """How many chips a card has, and the id of its controller where it has one."""
        chips, mcu, cpu = c_int(), c_int(-1), c_int(-1)
        try:
            self._call("dcmi_get_device_id_in_card", card, byref(chips), byref(mcu), byref(cpu))
        except DcmiError as error:
            if error.code != NOT_SUPPORTED:
                raise
            self._call("dcmi_get_device_num_in_card", card, byref(chips))
        return max(0, min(chips.value, 16)), mcu.value if mcu.value >= 0 else None

    def logical_id(self, card: int, chip: int) -> int:
        return self._int("dcmi_get_device_logic_id", card, chip, first=True)

    def temperature_celsius(self, card: int, device: int) -> int:
        """Of a chip, or of the board by its controller's id. May be a sentinel: 0x7ffd, 0x7fff, below -275."""
        return self._int("dcmi_get_device_temperature", card, device)

    def power_watts(self, card: int, chip: int) -> float:
        return self._int("dcmi_get_device_power_info", card, chip) / 10

    def card_power_watts(self, card: int) -> float:
        return self._int("dcmi_mcu_get_power_info", card) / 10

    def utilization_percent(self, card: int, chip: int, kind: int) -> int:
        return self._uint("dcmi_get_device_utilization_rate", card, chip, kind)

    def frequency_mhz(self, card: int, chip: int, kind: int) -> int:
        return self._uint("dcmi_get_device_frequency", card, chip, kind)

    def aicore(self, card: int, chip: int) -> AicoreInfo:
        info = AicoreInfo()
        self._call("dcmi_get_device_aicore_info", card, chip, byref(info))
        return info

    def memory(self, card: int, chip: int) -> MemoryInfo:
        info = MemoryInfo()
        self._call("dcmi_get_device_memory_info_v3", card, chip, byref(info))
        return info

    def hbm(self, card: int, chip: int) -> HbmInfo:
        info = HbmInfo()
        self._call("dcmi_get_device_hbm_info", card, chip, byref(info))
        return info

    def health(self, card: int, chip: int) -> int:
        """0 well, 1 minor, 2 major, 3 critical; anything else is unknown."""
        return self._uint("dcmi_get_device_health", card, chip)

    def error_codes(self, card: int, chip: int) -> list[int]:
        count, codes = c_int(), (c_uint32 * MAX_CODES)()
        self._call("dcmi_get_device_errorcode_v2", card, chip, byref(count), codes, MAX_CODES)
        return list(codes[: max(0, min(count.value, MAX_CODES))])

    def thermal_thresholds_celsius(self, card: int, chip: int) -> tuple[int, int]:
        """Where the firmware begins to lower the clock, and where the chip resets itself."""
        info = _SensorInfo()
        self._call("dcmi_get_device_sensor_info", card, chip, _THERMAL_THRESHOLD, byref(info))
        return info.temp[0], info.temp[1]

    def clock_reduction_bitmap(self, card: int, chip: int) -> int:
        """Why the firmware has lowered the clock: see throttle.py."""
        value, size = c_uint64(), c_uint32(ctypes.sizeof(c_uint64))
        arguments = (_LOW_POWER, _CLOCK_REDUCTION_CAUSE, ctypes.cast(byref(value), ctypes.c_void_p), byref(size))
        self._call("dcmi_get_device_info", card, chip, *arguments)
        return value.value

    def _int(self, name: str, *arguments: Any, first: bool = False) -> int:
        value = c_int()
        self._call(name, *((byref(value), *arguments) if first else (*arguments, byref(value))))
        return value.value

    def _uint(self, name: str, *arguments: Any) -> int:
        value = c_uint32()
        self._call(name, *arguments, byref(value))
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        function = self._functions.get(name)
        code = NOT_SUPPORTED if function is None else int(function(*arguments))
        if code:
            raise DcmiError(name, code)


def find_dcmi() -> str | None:
    """Where the library is: where the loader is told to look, or where drivers put it."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for place in (*(f"{folder}/libdcmi.so" for folder in folders), *_PLACES):
        if Path(place).is_file():
            return place
    return None
