"""``hwmon``: the processor's temperature, from hwmon or else from thermal zones.

The hottest plausible input counts. A machine without any, such as most virtual ones, has no temperature: that is no
error.
"""

from collections.abc import Iterator
from pathlib import Path

from coldplate_governor.sensors.base import QUANTITIES, SensorError

_PROCESSOR_DRIVERS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "scpi_sensors", "cpu")
_PROCESSOR_ZONES = ("cpu", "x86_pkg", "soc", "cluster", "pkg")
_QUANTITY = QUANTITIES["temperature_celsius"]


class HwmonSensor:
    """Reads below ``root``, which holds ``hwmon`` and ``thermal`` as /sys/class does."""

    name = "hwmon"

    def __init__(self, root: str = "/sys/class") -> None:
        self._root = Path(root)

    def read(self) -> dict[str, float]:
        values: list[float] = []
        unreadable: list[str] = []
        for path in list(self._hwmon_inputs()) or list(self._zone_inputs()):
            try:
                celsius = int(path.read_text().strip()) / 1000
            except FileNotFoundError:
                continue  # unplugged since it was listed
            except (OSError, ValueError) as error:
                unreadable.append(f"{path}: {error}")
                continue
            if _QUANTITY.low <= celsius <= _QUANTITY.high and celsius not in _QUANTITY.sentinels:
                values.append(celsius)
        if values:
            return {"temperature_celsius": max(values)}
        if unreadable:
            raise SensorError(f"hwmon: {unreadable[0]}")
        return {}

    def _hwmon_inputs(self) -> Iterator[Path]:
        for chip in sorted(self._root.glob("hwmon/hwmon*")):
            if _text(chip / "name").startswith(_PROCESSOR_DRIVERS):
                yield from sorted(chip.glob("temp*_input"))

    def _zone_inputs(self) -> Iterator[Path]:
        for zone in sorted(self._root.glob("thermal/thermal_zone*")):
            if any(word in _text(zone / "type").lower() for word in _PROCESSOR_ZONES):
                yield zone / "temp"


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
