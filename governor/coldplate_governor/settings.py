"""Settings of the governor, and the devices they describe."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, field_validator

from coldplate.clock import MonotonicClock
from coldplate.device_id import DeviceId
from coldplate.paths import control_socket, runtime_dir
from coldplate.profile import DeviceProfile, load_profile, profile_names
from coldplate.settings import ProcessSettings
from coldplate_governor.board.client import BoardClient, BoardUnreachable, unix_path
from coldplate_governor.levers.registry import LEVERS, make_lever
from coldplate_governor.sensors.registry import (
    DEFAULT_CPU_SENSORS,
    SENSORS,
    default_npu_sensors,
    make_sensor,
)
from coldplate_governor.stop import StopRequest

DEFAULT_PROFILES = {"cpu": "cpu", "npu": "310p-duo"}


class GovernorSettings(ProcessSettings):
    """Watches devices and steers the server: samples, decides once a second, applies limits under a lease."""

    control: str = Field(
        default_factory=lambda: f"unix:{control_socket()}", description="The server's control socket: unix:/path."
    )
    name: str = Field("governor", min_length=1, max_length=64, description="Who holds the lease.")
    device: list[str] = Field(
        [],
        description="NAME or NAME=PROFILE, repeatable: a device to govern and its profile (a name, or a .toml file). "
        "[default: cpu, and every chip of --board]",
    )
    sensor: list[str] = Field(
        [],
        description="[DEVICE@]NAME[=ARGUMENT], repeatable: a sensor for one device, or for every device it fits: "
        f"{', '.join(SENSORS)}. [default: {', '.join(DEFAULT_CPU_SENSORS)} on cpu; board on the chips of --board; on "
        "other npu:N npu-smi and dcmi where they are installed]",
    )
    board: str | None = Field(None, description="A simulated board, unix:/path: each of its chips N becomes npu:N.")
    heatsink: list[str] = Field(
        [],
        description="DEVICE,DEVICE…, repeatable: devices that share a heatsink, such as npu:0,npu:1. "
        "[default: as many consecutive chips as their profile says]",
    )
    frequency: list[str] = Field(
        [],
        description="[DEVICE@]NAME[=ARGUMENT], repeatable: what may lower a device's clock, one for each device: "
        f"{', '.join(LEVERS)}. Proven at start, put back at the end. [default: none; clocks are left alone]",
    )
    frequency_state: Path = Field(
        default_factory=lambda: runtime_dir() / "frequency",
        description="Folder that keeps what clocks were set to before; it must outlive a governor that is killed.",
    )
    lease_s: float = Field(5.0, ge=1, le=60, description="How long limits hold when the governor falls silent.")
    sensor_interval_s: float = Field(
        1.0, ge=0.1, le=2.5, description="Between two samples of a sensor; what is older than 5 s counts as lost."
    )
    sensor_deadline_s: float = Field(
        5.0,
        ge=1,
        le=60,
        description="A sensor agent that is late by so long is replaced; a run of npu-smi has half of it.",
    )
    metrics_listen: str | None = Field(None, description="Serve Prometheus metrics at HOST:PORT.")
    record: str | None = Field(
        None,
        description="Where every decision is recorded: a file, or `off`. "
        "[default: governor/NAME.jsonl in $COLDPLATE_STATE, else in ~/.local/state/coldplate]",
    )
    record_size_mib: int = Field(64, ge=1, le=65536, description="The recording and the one before it stay below this.")

    @field_validator("control", "board")
    @classmethod
    def _is_unix(cls, value: str | None) -> str | None:
        if value is not None:
            unix_path(value)
        return value

    @field_validator("metrics_listen")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"\S+:\d{1,5}", value):
            raise ValueError("expected HOST:PORT, such as 127.0.0.1:9465")
        return value


@dataclass(frozen=True, slots=True)
class GovernedDevice:
    """One device to govern: its profile, the specs of its sensors, and of its frequency lever if it has one."""

    device: DeviceId
    profile: DeviceProfile
    sensors: tuple[str, ...]
    frequency: str | None = None


def governed_devices(settings: GovernorSettings, board_chips: int = 0) -> list[GovernedDevice]:
    """The devices the settings describe. Raises ValueError that names what does not fit."""
    named = settings.device or ["cpu", *(f"npu:{chip}" for chip in range(board_chips))]
    usual = _board_profiles(settings.board) if settings.board and board_chips else {}
    profiles = dict(_device_and_profile(text, usual) for text in named)
    if len(profiles) != len(named):
        raise ValueError(f"device: {', '.join(named)} names one twice")
    sensors: dict[DeviceId, list[str]] = {device: [] for device in profiles}
    for text in settings.sensor:
        for device, spec in _placed_sensor(text, profiles):
            sensors[device].append(spec)
    for device, specs in sensors.items():
        if not specs and device.kind == "cpu":
            specs += DEFAULT_CPU_SENSORS
        elif not specs and settings.board and device.index is not None and device.index < board_chips:
            specs.append(f"board={settings.board}")
        elif not specs:
            specs += default_npu_sensors()
    levers = _placed_levers(settings.frequency, profiles)
    return [
        GovernedDevice(device, profiles[device], tuple(sensors[device]), levers.get(device))
        for device in sorted(profiles, key=str)
    ]


def count_board_chips(address: str, stop: StopRequest, patience_s: float = 10.0) -> int:
    """How many chips the board at ``address`` has; one that is just starting is waited for. Raises BoardUnreachable."""
    clock = MonotonicClock()
    give_up_s = clock.now() + patience_s
    with BoardClient(address) as board:
        while True:
            try:
                return int(board.describe()["chips"])
            except BoardUnreachable:
                if clock.now() >= give_up_s or stop.wait(0.2):
                    raise


def _board_profiles(address: str) -> dict[DeviceId, str]:
    """The profile of each chip of the board, where there is one for its kind. Raises BoardUnreachable."""
    with BoardClient(address) as board:
        names = enumerate(board.describe()["profiles"])
    return {DeviceId("npu", chip): name for chip, name in names if name in profile_names()}


def _device_and_profile(text: str, usual: Mapping[DeviceId, str]) -> tuple[DeviceId, DeviceProfile]:
    name, _, profile_name = text.partition("=")
    device = DeviceId.parse(name)
    profile = load_profile(profile_name or usual.get(device) or DEFAULT_PROFILES[device.kind])
    if profile.kind != device.kind:
        raise ValueError(f"device {name}: profile {profile.name!r} is for a {profile.kind}")
    return device, profile


def _placed_sensor(text: str, devices: dict[DeviceId, DeviceProfile]) -> list[tuple[DeviceId, str]]:
    """The devices a ``--sensor`` watches, with its spec."""
    named, spec = _device_and_spec("sensor", text, devices)
    kind = SENSORS.get(spec.partition("=")[0])
    targets = [named] if named else [d for d in devices if kind is None or d.kind == kind.device_kind]
    if not targets:
        raise ValueError(f"sensor {text!r}: no governed device it could watch")
    for device in targets:
        make_sensor(device, spec)  # says at once what is wrong with it
    return [(device, spec) for device in targets]


def _placed_levers(texts: list[str], devices: dict[DeviceId, DeviceProfile]) -> dict[DeviceId, str]:
    """The spec of the frequency lever of each device that has one."""
    levers: dict[DeviceId, str] = {}
    for text in texts:
        named, spec = _device_and_spec("frequency", text, devices)
        kind = LEVERS.get(spec.partition("=")[0])
        fitting = [d for d in devices if kind is None or kind.device_kind in (None, d.kind)]
        targets = [named] if named else fitting
        if not targets:
            raise ValueError(f"frequency {text!r}: no governed device whose clock it could set")
        for device in targets:
            make_lever(device, spec)
            if device in levers:
                raise ValueError(f"frequency {text!r}: {device} has {levers[device]!r} already: one lever a device")
            levers[device] = spec
    return levers


def _device_and_spec(flag: str, text: str, devices: dict[DeviceId, DeviceProfile]) -> tuple[DeviceId | None, str]:
    """The parts of ``[DEVICE@]NAME[=ARGUMENT]``. Raises ValueError for a device that is not governed."""
    before, at, after = text.partition("@")
    if not at or "=" in before:
        return None, text
    device = DeviceId.parse(before)
    if device not in devices:
        raise ValueError(f"{flag} {text!r}: {device} is not governed: add --device {device}")
    return device, after
