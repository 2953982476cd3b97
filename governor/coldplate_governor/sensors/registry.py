"""Sensors by name. A new sensor is a new file beside the others and one entry here."""

from collections.abc import Callable
from dataclasses import dataclass

from coldplate.device_id import DeviceId
from coldplate_governor.board.client import unix_path
from coldplate_governor.sensors.base import Sensor
from coldplate_governor.sensors.board import BoardSensor
from coldplate_governor.sensors.cgroup import CgroupSensor
from coldplate_governor.sensors.host import PsutilSensor
from coldplate_governor.sensors.hwmon import HwmonSensor
from coldplate_governor.sensors.psi import PsiSensor


@dataclass(frozen=True, slots=True)
class SensorKind:
    """The kind of device it can watch, how to make it from its argument, and what the argument is."""

    device_kind: str
    make: Callable[[DeviceId, str | None], Sensor]
    argument: str


def _board(device: DeviceId, argument: str | None) -> Sensor:
    if argument is None:
        raise ValueError("needs the board's address: board=unix:/path")
    unix_path(argument)
    return BoardSensor(argument, device.index or 0)


def _without_argument(make: Callable[[], Sensor]) -> Callable[[DeviceId, str | None], Sensor]:
    def build(device: DeviceId, argument: str | None) -> Sensor:
        if argument is not None:
            raise ValueError(f"takes no argument, got {argument[:80]!r}")
        return make()

    return build


SENSORS: dict[str, SensorKind] = {
    "psutil": SensorKind("cpu", _without_argument(PsutilSensor), "none"),
    "hwmon": SensorKind("cpu", lambda _, root: HwmonSensor(root or "/sys/class"), "folder like /sys/class"),
    "cgroup": SensorKind("cpu", lambda _, root: CgroupSensor(root or "/sys/fs/cgroup"), "cgroup mount"),
    "psi": SensorKind("cpu", lambda _, folder: PsiSensor(folder or "/proc/pressure"), "folder like /proc/pressure"),
    "board": SensorKind("npu", _board, "unix:/path"),
}
DEFAULT_CPU_SENSORS = ("psutil", "hwmon", "cgroup", "psi")


def make_sensor(device: DeviceId, spec: str) -> Sensor:
    """Make the sensor ``NAME`` or ``NAME=ARGUMENT`` for ``device``. Raises ValueError with what is expected."""
    name, equals, argument = spec.partition("=")
    kind = SENSORS.get(name)
    if kind is None:
        raise ValueError(f"unknown sensor {spec[:80]!r}: expected one of {', '.join(SENSORS)}")
    if kind.device_kind != device.kind:
        raise ValueError(f"sensor {name!r} cannot watch {device}: it is for {kind.device_kind} devices")
    try:
        return kind.make(device, argument if equals else None)
    except ValueError as error:
        raise ValueError(f"sensor {name!r}: {error}") from error
