"""Device profiles: the temperatures, safe limits and gains of one kind of device, each number with its source.

Shared by the governor, which steers by them, and the server, which falls back on ``safe_limits`` when the lease has
run out.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from coldplate.limits import FIELD_NAMES, Limits


class ProfileError(ValueError):
    """A profile that cannot be used; the text names the file, the key and the value."""


@dataclass(frozen=True, slots=True)
class Temperatures:
    """Degrees Celsius. The governor holds ``target``; at ``firmware_cliff`` the firmware cuts the clock by itself; near
    ``critical`` the governor stops all it can. The cliff and the critical temperature are separate facts."""

    target_celsius: float
    firmware_cliff_celsius: float
    critical_celsius: float


@dataclass(frozen=True, slots=True)
class Heatsink:
    """How chips sit: so many consecutive ones share a heatsink, and with it one thermal budget."""

    chips_per_heatsink: int


@dataclass(frozen=True, slots=True)
class Levers:
    """Range of what the governor sets. Above ``max_batch`` and ``max_prefill_tokens`` a limit is no limit.

    ``min_duty`` keeps streams moving in ordinary hardship, ``critical_duty`` holds while the chip is in danger.
    ``short_answer_tokens`` and ``short_context_tokens`` cap new requests on the lower rungs of the ladder, which a wait
    of more than ``max_queue_wait_s`` also leads to.
    """

    min_duty: float
    critical_duty: float
    max_prefill_tokens: int
    min_prefill_tokens: int
    max_batch: int
    short_answer_tokens: int
    short_context_tokens: int
    max_queue_wait_s: float


@dataclass(frozen=True, slots=True)
class MemoryBand:
    """Shares of device memory at which a batch cap tightens and is released; pressure stall in percent of time."""

    high_share: float
    low_share: float
    high_pressure_percent: float


@dataclass(frozen=True, slots=True)
class Gains:
    """Of the temperature law: ``kp`` in share of duty per degC, times in seconds, slew in share per second."""

    kp: float
    ti_s: float
    td_s: float
    tt_s: float
    filter: float
    slew_up_per_s: float
    slew_down_per_s: float
    guard_horizon_s: float


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """One kind of device. ``sources`` maps ``table.key`` to where the number comes from."""

    name: str
    kind: str
    temperature: Temperatures
    heatsink: Heatsink
    safe_limits: Limits
    levers: Levers
    memory: MemoryBand
    gains: Gains
    sources: Mapping[str, str]


_SHARES = {"min_duty", "critical_duty", "high_share", "low_share", "filter", "slew_up_per_s", "slew_down_per_s"}
_RANGES: dict[str, tuple[float, float]] = {
    "target_celsius": (20, 125),
    "firmware_cliff_celsius": (20, 125),
    "critical_celsius": (20, 125),
    "high_pressure_percent": (1, 100),
    "chips_per_heatsink": (1, 64),
    "kp": (0.001, 0.15),  # above, one step of a 1 degC sensor makes the duty chatter
    "ti_s": (5, 600),
    "td_s": (0, 60),
    "tt_s": (1, 600),
} | dict.fromkeys(_SHARES, (0.001, 1.0))
_DEFAULT_RANGE = (0.1, 1_000_000)
_TABLES = ("temperature", "heatsink", "safe_limits", "levers", "memory", "gains")


def profile_names() -> list[str]:
    """The profiles that come with the distribution."""
    folder = resources.files("coldplate") / "profiles"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_profile(name_or_path: str) -> DeviceProfile:
    """Read a profile by the name of a shipped one, or from a file (a path that ends in ``.toml`` or holds a slash).

    Raises ProfileError, which names the file, the key and the value.
    """
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        path = Path(name_or_path)
        try:
            return parse_profile(path.read_text(encoding="utf-8"), path.stem, str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"profile {path}: {getattr(error, 'strerror', None) or error}") from error
    if name_or_path not in profile_names():
        known = ", ".join(profile_names())
        raise ProfileError(f"unknown profile {name_or_path[:80]!r}: expected {known}, or the path of a .toml file")
    file = resources.files("coldplate") / "profiles" / f"{name_or_path}.toml"
    return parse_profile(file.read_text(encoding="utf-8"), name_or_path, file.name)


def parse_profile(text: str, name: str, file: str) -> DeviceProfile:
    """Read a profile from TOML text; ``file`` is what errors call it. Raises ProfileError."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"profile {file}: not TOML: {error}") from error
    kind = tables.pop("kind", None)
    if kind not in ("cpu", "npu"):
        raise ProfileError(f"profile {file}: kind is {kind!r}: expected 'cpu' or 'npu'")
    for key in tables:
        if key not in _TABLES:
            raise ProfileError(f"profile {file}: unknown table {key!r}: expected {', '.join(_TABLES)}")
    reader = _Reader(file, tables)
    profile = DeviceProfile(
        name=name,
        kind=kind,
        temperature=reader.fill("temperature", Temperatures),
        heatsink=reader.fill("heatsink", Heatsink),
        safe_limits=reader.safe_limits(),
        levers=reader.fill("levers", Levers),
        memory=reader.fill("memory", MemoryBand),
        gains=reader.fill("gains", Gains),
        sources=reader.sources,
    )
    _check_order(profile, file)
    return profile


T = TypeVar("T", Temperatures, Heatsink, Levers, MemoryBand, Gains)


class _Reader:
    """Reads ``{ value = ..., source = "..." }`` entries and keeps their sources."""

    def __init__(self, file: str, tables: dict[str, Any]) -> None:
        self._file = file
        self._tables = tables
        self.sources: dict[str, str] = {}

    def fill(self, table: str, cls: type[T]) -> T:
        types = {field.name: field.type for field in fields(cls) if field.default is MISSING}
        numbers = self._numbers(table, tuple(types))
        for key, kind in types.items():
            if key not in numbers:
                raise ProfileError(f"profile {self._file}: {table}.{key} is missing")
            low, high = _RANGES.get(key, _DEFAULT_RANGE)
            value = numbers[key]
            if not low <= value <= high:
                raise ProfileError(f"profile {self._file}: {table}.{key} is {value}: expected {low:g} to {high:g}")
            numbers[key] = self._whole(table, key, value) if kind is int else float(value)
        return cls(**numbers)

    def safe_limits(self) -> Limits:
        numbers = self._numbers("safe_limits", FIELD_NAMES, switches=("admit",))
        shares = ("duty", "cpu_share", "admit")
        values: dict[str, Any] = {k: v if k in shares else self._whole("safe_limits", k, v) for k, v in numbers.items()}
        try:
            limits = Limits(**values)
        except ValueError as error:
            raise ProfileError(f"profile {self._file}: safe_limits.{error}") from error
        if not limits:
            raise ProfileError(f"profile {self._file}: safe_limits is empty: a device that nobody governs needs limits")
        return limits

    def _numbers(self, table: str, known: tuple[str, ...], switches: tuple[str, ...] = ()) -> dict[str, Any]:
        entries = self._tables.get(table)
        if not isinstance(entries, dict):
            raise ProfileError(f"profile {self._file}: table {table} is missing")
        numbers: dict[str, Any] = {}
        for key, entry in entries.items():
            at = f"profile {self._file}: {table}.{key}"
            if key not in known:
                raise ProfileError(f"{at} is unknown: expected one of {', '.join(known)}")
            if not isinstance(entry, dict) or set(entry) != {"value", "source"}:
                raise ProfileError(f'{at} is {entry!r}: expected {{ value = NUMBER, source = "..." }}')
            if not isinstance(entry["source"], str) or not entry["source"].strip():
                raise ProfileError(f"{at}.source is {entry['source']!r}: say where the number comes from")
            value = entry["value"]
            right = isinstance(value, bool) if key in switches else _is_number(value)
            if not right:
                expected = "true or false" if key in switches else "a finite number"
                raise ProfileError(f"{at}.value is {value!r}: expected {expected}")
            numbers[key] = value
            self.sources[f"{table}.{key}"] = entry["source"]
        return numbers

    def _whole(self, table: str, key: str, value: float) -> int:
        if value != int(value):
            raise ProfileError(f"profile {self._file}: {table}.{key} is {value}: expected a whole number")
        return int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_order(profile: DeviceProfile, file: str) -> None:
    """Pairs of numbers that must not be crossed."""
    heat, memory, levers, gains = profile.temperature, profile.memory, profile.levers, profile.gains
    for (low, low_value), (high, high_value) in (
        (("temperature.target_celsius", heat.target_celsius), ("temperature.critical_celsius", heat.critical_celsius)),
        (
            ("temperature.target_celsius", heat.target_celsius),
            ("temperature.firmware_cliff_celsius", heat.firmware_cliff_celsius),
        ),
        (("memory.low_share", memory.low_share), ("memory.high_share", memory.high_share)),
        (
            ("levers.min_prefill_tokens", levers.min_prefill_tokens),
            ("levers.max_prefill_tokens", levers.max_prefill_tokens),
        ),
        (("levers.critical_duty", levers.critical_duty), ("levers.min_duty", levers.min_duty)),
        (("gains.slew_up_per_s", gains.slew_up_per_s), ("gains.slew_down_per_s", gains.slew_down_per_s)),
    ):
        if low_value >= high_value:
            raise ProfileError(
                f"profile {file}: {low} is {low_value:g}: expected below {high}, which is {high_value:g}"
            )
    safe, least = profile.safe_limits.duty, levers.min_duty
    if safe is not None and safe < least:
        raise ProfileError(
            f"profile {file}: safe_limits.duty is {safe:g}: expected at least levers.min_duty, which is {least:g}"
        )
