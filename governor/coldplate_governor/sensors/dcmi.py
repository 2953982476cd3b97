"""``dcmi``: one chip through the management library.

It tells what ``npu-smi`` tells without a process start, and what that does not tell at all: the firmware's own
temperature limits and why it has lowered the clock.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coldplate_governor.sensors.base import HEALTH, Readings, SensorError, SensorUnusable
from coldplate_governor.sensors.dcmi_library import Dcmi, DcmiError, find_dcmi
from coldplate_governor.sensors.npu_faults import NO_SUCH_DEVICE, NOT_READY, NOT_SUPPORTED, is_unusable
from coldplate_governor.sensors.throttle import throttle_cause

_MEGABYTE = 2**20
_AICORE_USE, _MEMORY_BANDWIDTH_USE, _HBM_BANDWIDTH_USE = 2, 5, 10
_CLOCK_NOW, _CLOCK_RATED = 7, 9
_UNUSABLE_AGAIN_S = 30.0
_LIMITS_AGAIN_S = 60.0
_NO_TEMPERATURE, _LEAST_CELSIUS = (0x7FFD, 0x7FFF), -275

_Values = dict[str, float | str]


class DcmiSensor:
    """Reads the chip with the logical id ``index`` through the library at ``path``, or where drivers put it.

    What a chip does not support is asked once. A call that fails costs its own quantity and no other.
    """

    name = "dcmi"

    def __init__(self, index: int, path: Path | None = None) -> None:
        self._index = index
        self._path = path
        self._library: Dcmi | None = None
        self._place: tuple[int, int, int | None] | None = None
        self._unsupported: set[str] = set()
        self._limits: _Values = {}
        self._limits_due_s = -math.inf
        self._unusable: tuple[str, float] | None = None

    def read(self) -> Readings:
        if self._unusable is not None and time.monotonic() < self._unusable[1]:
            raise SensorUnusable(self._unusable[0])
        self._unusable = None
        try:
            library = self._opened()
            card, chip, controller = self._place = self._place or self._found(library)
            return self._read(library, card, chip, controller)
        except SensorUnusable as error:
            self._unusable = (str(error), time.monotonic() + _UNUSABLE_AGAIN_S)
            raise

    def _opened(self) -> Dcmi:
        if self._library is None:
            path = str(self._path) if self._path else find_dcmi()
            if path is None:
                raise SensorUnusable(
                    "dcmi: libdcmi.so not found: mount /usr/local/dcmi and the driver's lib64 into this container, or "
                    "name it with --sensor dcmi=PATH"
                )
            try:
                self._library = Dcmi(path)
            except OSError as error:
                raise SensorUnusable(f"dcmi: {path} cannot be loaded: {error}") from error
            except DcmiError as error:
                raise _failed(error) from error
        return self._library

    def _found(self, library: Dcmi) -> tuple[int, int, int | None]:
        """Card, chip and controller of this device. Raises SensorError that names the devices there are."""
        seen: list[str] = []
        trouble: DcmiError | None = None
        try:
            cards = library.cards()
        except DcmiError as error:
            raise _failed(error) from error
        for card in cards:
            try:
                chips, controller = library.chips_and_controller(card)
            except DcmiError as error:
                trouble = error
                continue
            for chip in range(chips):
                try:
                    logical = library.logical_id(card, chip)
                except DcmiError as error:
                    trouble = error
                    continue
                if logical == self._index:
                    return card, chip, controller
                seen.append(f"{logical} (card {card} chip {chip})")
        if not seen and trouble is not None:
            raise _failed(trouble)
        raise SensorError(f"dcmi: there is no device {self._index}; it shows {', '.join(seen[:16]) or 'none'}")

    def _read(self, library: Dcmi, card: int, chip: int, controller: int | None) -> _Values:
        readings: _Values = {}
        failures: list[DcmiError] = []
        for name, call in _CALLS.items():
            if call.instead_of not in readings:
                readings |= self._ask(name, failures, partial(call.take, library, card, chip))
        if controller is not None:
            readings |= self._ask("controller", failures, partial(_board_temperature, library, card, controller))
        readings |= self._thresholds(library, card, chip, failures)
        found = {name: value for name, value in readings.items() if not _is_none(name, value)}
        if any(error.code == NOT_READY or error.code in NO_SUCH_DEVICE for error in failures):
            self._place = None  # it may come back under another number
        if failures and not found:
            raise _failed(failures[0])
        if failures:
            raise SensorError(f"dcmi: {failures[0]}", found)
        return found

    def _ask(self, name: str, failures: list[DcmiError], take: Callable[[], _Values]) -> _Values:
        """One call, unless the chip has said that it does not support it."""
        if name in self._unsupported:
            return {}
        try:
            return take()
        except DcmiError as error:
            if error.code == NOT_SUPPORTED:
                self._unsupported.add(name)
            else:
                failures.append(error)
            return {}

    def _thresholds(self, library: Dcmi, card: int, chip: int, failures: list[DcmiError]) -> _Values:
        """The firmware's own limits, read once: they do not change while a chip runs."""
        if not self._limits and time.monotonic() >= self._limits_due_s:
            self._limits_due_s = time.monotonic() + _LIMITS_AGAIN_S
            self._limits = self._ask("thresholds", failures, partial(_thresholds, library, card, chip))
        return self._limits


def _temperature(library: Dcmi, card: int, chip: int) -> _Values:
    return {"temperature_celsius": float(library.temperature_celsius(card, chip))}


def _power(library: Dcmi, card: int, chip: int) -> _Values:
    return {"power_watts": library.power_watts(card, chip)}


def _utilization(library: Dcmi, card: int, chip: int) -> _Values:
    return {"utilization_percent": float(library.utilization_percent(card, chip, _AICORE_USE))}


def _card_power(library: Dcmi, card: int, chip: int) -> _Values:
    return {"card_power_watts": library.card_power_watts(card)}


def _board_temperature(library: Dcmi, card: int, controller: int) -> _Values:
    return {"board_temperature_celsius": float(library.temperature_celsius(card, controller))}


def _aicore(library: Dcmi, card: int, chip: int) -> _Values:
    info = library.aicore(card, chip)
    return {"frequency_mhz": float(info.cur_freq), "rated_frequency_mhz": float(info.freq)}


def _clocks(library: Dcmi, card: int, chip: int) -> _Values:
    now = library.frequency_mhz(card, chip, _CLOCK_NOW)
    return {"frequency_mhz": float(now), "rated_frequency_mhz": float(library.frequency_mhz(card, chip, _CLOCK_RATED))}


def _hbm(library: Dcmi, card: int, chip: int) -> _Values:
    hbm = library.hbm(card, chip)
    if not hbm.memory_size:
        return {}
    return {
        "memory_total_bytes": float(hbm.memory_size * _MEGABYTE),
        "memory_used_bytes": float(hbm.memory_usage * _MEGABYTE),
        "memory_temperature_celsius": float(hbm.temp),
    }


def _memory(library: Dcmi, card: int, chip: int) -> _Values:
    info = library.memory(card, chip)
    if not info.memory_size or info.memory_available > info.memory_size:
        return {}
    return {
        "memory_total_bytes": float(info.memory_size * _MEGABYTE),
        "memory_used_bytes": float((info.memory_size - info.memory_available) * _MEGABYTE),
    }


def _hbm_bandwidth(library: Dcmi, card: int, chip: int) -> _Values:
    return {"memory_bandwidth_percent": float(library.utilization_percent(card, chip, _HBM_BANDWIDTH_USE))}


def _bandwidth(library: Dcmi, card: int, chip: int) -> _Values:
    return {"memory_bandwidth_percent": float(library.utilization_percent(card, chip, _MEMORY_BANDWIDTH_USE))}


def _health(library: Dcmi, card: int, chip: int) -> _Values:
    health = library.health(card, chip)
    return {"health": HEALTH[health]} if health < len(HEALTH) else {}


def _error_codes(library: Dcmi, card: int, chip: int) -> _Values:
    return {"error_codes": " ".join(f"{code:08X}" for code in library.error_codes(card, chip) if code)}


def _throttle(library: Dcmi, card: int, chip: int) -> _Values:
    return {"throttle_cause": throttle_cause(library.clock_reduction_bitmap(card, chip))}


def _thresholds(library: Dcmi, card: int, chip: int) -> _Values:
    limit, reset = library.thermal_thresholds_celsius(card, chip)
    found = {"firmware_limit_celsius": float(limit), "reset_celsius": float(reset)}
    return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class _Call:
    """What is asked, and the quantity that makes it needless once an earlier call has told it."""

    take: Callable[[Dcmi, int, int], _Values]
    instead_of: str = ""


_CALLS: dict[str, _Call] = {
    "temperature": _Call(_temperature),
    "power": _Call(_power),
    "card_power": _Call(_card_power, "power_watts"),  # a 310P measures the whole card, by its controller
    "utilization": _Call(_utilization),
    "aicore": _Call(_aicore),
    "clocks": _Call(_clocks, "frequency_mhz"),
    "hbm": _Call(_hbm),
    "memory": _Call(_memory, "memory_total_bytes"),
    "hbm_bandwidth": _Call(_hbm_bandwidth),
    "bandwidth": _Call(_bandwidth, "memory_bandwidth_percent"),
    "health": _Call(_health),
    "error_codes": _Call(_error_codes),
    "throttle": _Call(_throttle),
}


def _is_none(name: str, value: float | str) -> bool:
    """Whether the library has said "not measured" with a number. Nothing of a chip that runs is 0 but a share; other
    values that cannot be are left to the judgement of whoever reads them."""
    if isinstance(value, str):
        return False
    if name.endswith("_celsius"):
        return value in _NO_TEMPERATURE or value < _LEAST_CELSIUS
    return name.endswith(("_watts", "_mhz")) and value == 0


def _failed(error: DcmiError) -> SensorError:
    return (SensorUnusable if is_unusable(error.code) else SensorError)(f"dcmi: {error}")
