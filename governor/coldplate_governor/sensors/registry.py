"""Sensors by name. A new sensor is a new file beside the others and one entry here."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coldplate.device_id import DeviceId
from coldplate_governor.board.client import unix_path
from coldplate_governor.sensors.base import Sensor
from coldplate_governor.sensors.board import BoardSensor
from coldplate_governor.sensors.cgroup import CgroupSensor
from coldplate_governor.sensors.dcmi import DcmiSensor
from coldplate_governor.sensors.dcmi_library import find_dcmi
from coldplate_governor.sensors.host import PsutilSensor
from coldplate_governor.sensors.hwmon import HwmonSensor
from coldplate_governor.sensors.npu_exporter import NpuExporterSensor, check_url
from coldplate_governor.sensors.npu_smi import NpuSmiSensor
from coldplate_governor.sensors.psi import PsiSensor
from coldplate_governor.sensors.tool import find_npu_smi

DEFAULT_TIMEOUT_S = 2.5


@dataclass(frozen=True, slots=True)
class SensorKind:
    """The kind of device it can watch, how to make it from device, argument and seconds it may take, and what the
    argument is. ``alone``: it may hang for good, so it gets a process of its own."""

    device_kind: str
    make: Callable[[DeviceId, str | None, float], Sensor]
    argument: str
    alone: bool = False


def _board(device: DeviceId, argument: str | None, timeout_s: float) -> Sensor:
    if argument is None:
        raise ValueError("needs the board's address: board=unix:/path")
    unix_path(argument)
    return BoardSensor(argument, device.index or 0)


def _npu_smi(device: DeviceId, argument: str | None, timeout_s: float) -> Sensor:
    return NpuSmiSensor(device.index or 0, _file(argument, os.X_OK, "an executable file"), timeout_s)


def _dcmi(device: DeviceId, argument: str | None, timeout_s: float) -> Sensor:
    return DcmiSensor(device.index or 0, _file(argument, os.R_OK, "a library file"))


def _npu_exporter(device: DeviceId, argument: str | None, timeout_s: float) -> Sensor:
    if not argument:
        raise ValueError("needs the exporter's address: npu-exporter=http://HOST:PORT/metrics")
    check_url(argument)
    return NpuExporterSensor(device.index or 0, argument, timeout_s)


def _file(argument: str | None, access: int, expected: str) -> Path | None:
    if argument is None:
        return None
    path = Path(argument)
    if not path.is_file() or not os.access(path, access):
        raise ValueError(f"{argument[:200]!r} is not {expected} that can be used")
    return path.absolute()


def _without_argument(make: Callable[[], Sensor]) -> Callable[[DeviceId, str | None, float], Sensor]:
    def build(device: DeviceId, argument: str | None, timeout_s: float) -> Sensor:
        if argument is not None:
            raise ValueError(f"takes no argument, got {argument[:80]!r}")
        return make()

    return build


SENSORS: dict[str, SensorKind] = {
    "psutil": SensorKind("cpu", _without_argument(PsutilSensor), "none"),
    "hwmon": SensorKind("cpu", lambda _, root, __: HwmonSensor(root or "/sys/class"), "folder like /sys/class"),
    "cgroup": SensorKind("cpu", lambda _, root, __: CgroupSensor(root or "/sys/fs/cgroup"), "cgroup mount"),
    "psi": SensorKind("cpu", lambda _, folder, __: PsiSensor(folder or "/proc/pressure"), "folder like /proc/pressure"),
    "npu-smi": SensorKind("npu", _npu_smi, "path of the tool"),
    "dcmi": SensorKind("npu", _dcmi, "path of libdcmi.so", alone=True),
    "npu-exporter": SensorKind("npu", _npu_exporter, "http://HOST:PORT/metrics"),
    "board": SensorKind("npu", _board, "unix:/path"),
}
DEFAULT_CPU_SENSORS = ("psutil", "hwmon", "cgroup", "psi")


def default_npu_sensors() -> tuple[str, ...]:
    """The sensors an NPU has on this machine: those whose tool or library is here."""
    found = {"npu-smi": find_npu_smi(), "dcmi": find_dcmi()}
    return tuple(name for name, place in found.items() if place)


def make_sensor(device: DeviceId, spec: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Sensor:
    """Make the sensor ``NAME`` or ``NAME=ARGUMENT`` for ``device``. Raises ValueError with what is expected.

    ``timeout_s`` is how long a run of a tool, or a request, may take.
    """
    name, equals, argument = spec.partition("=")
    kind = SENSORS.get(name)
    if kind is None:
        raise ValueError(f"unknown sensor {spec[:80]!r}: expected one of {', '.join(SENSORS)}")
    if kind.device_kind != device.kind:
        raise ValueError(f"sensor {name!r} cannot watch {device}: it is for {kind.device_kind} devices")
    try:
        return kind.make(device, argument if equals else None, timeout_s)
    except ValueError as error:
        raise ValueError(f"sensor {name!r}: {error}") from error


def grouped(specs: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The specs by agent: one for all that are quick, one for each sensor that may hang for good."""
    together = tuple(spec for spec in specs if not _is_alone(spec))
    return [group for group in (together, *((spec,) for spec in specs if _is_alone(spec))) if group]


def _is_alone(spec: str) -> bool:
    kind = SENSORS.get(spec.partition("=")[0])
    return kind is not None and kind.alone
