"""All that is known of one device: its tracks, fused into what the law and the server are told."""

from dataclasses import dataclass, field
from typing import Any

from coldplate_governor.sensors.base import QUANTITIES
from coldplate_governor.sensors.validate import QuantityTrack

_MEMORY = ("memory_used_bytes", "memory_total_bytes")


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """Fused readings at one moment. Quantities not measured are absent from ``values``.

    ``temperature_age_s`` is None when no temperature was ever seen; otherwise ``last_temperature_celsius`` is the last
    believed one, which ``values`` holds only while it is fresh.
    """

    values: dict[str, float] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    age_s: float | None = None
    last_temperature_celsius: float | None = None
    temperature_age_s: float | None = None


class DeviceSensors:
    """Takes samples of one device's sensors and fuses them: the hottest temperature, the smallest memory."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, str], QuantityTrack] = {}

    def take(self, source: str, readings: dict[str, Any], at_s: float) -> None:
        """Judge one sample; a bad field does not take the others with it."""
        for name, raw in readings.items():
            if name in QUANTITIES:
                track = self._tracks.setdefault((source, name), QuantityTrack(source, name))
                track.accept(raw, at_s)

    def problems(self) -> dict[str, str]:
        """Why the newest reading of a quantity is not believed, by ``source.quantity``."""
        return {f"{t.source}.{t.name}": t.last_problem for t in self._tracks.values() if t.last_problem}

    def fuse(self, now_s: float) -> DeviceReadings:
        fresh = {key: track for key, track in self._tracks.items() if track.standing(now_s) == "fresh"}
        lost = tuple(f"{t.source}.{t.name}" for t in self._tracks.values() if t.standing(now_s) == "lost")
        values: dict[str, float] = {}
        for (_, name), track in fresh.items():
            assert track.last_valid is not None
            value = track.last_valid.value
            assert value is not None
            if name not in _MEMORY and (name not in values or value > values[name]):
                values[name] = value
        values |= self._memory(fresh)
        ages = [age for track in fresh.values() if (age := track.age_s(now_s)) is not None]
        temperature, temperature_age = self._temperature(now_s)
        return DeviceReadings(
            values=values,
            sources=tuple(dict.fromkeys(source for source, _ in fresh)),
            lost=lost,
            age_s=min(ages, default=None),
            last_temperature_celsius=temperature,
            temperature_age_s=temperature_age,
        )

    def _memory(self, fresh: dict[tuple[str, str], QuantityTrack]) -> dict[str, float]:
        """Used and total of the source with the least in total: the container rather than the machine."""
        best: dict[str, float] = {}
        for source in dict.fromkeys(source for source, _ in fresh):
            pair = {
                name: track.last_valid.value
                for name in _MEMORY
                if (track := fresh.get((source, name))) and track.last_valid and track.last_valid.value is not None
            }
            total = pair.get("memory_total_bytes")
            if total is not None and total < best.get("memory_total_bytes", float("inf")):
                best = pair
        return best

    def _temperature(self, now_s: float) -> tuple[float | None, float | None]:
        tracks = [t for (_, name), t in self._tracks.items() if name == "temperature_celsius" and t.last_valid]
        fresh = [t for t in tracks if t.standing(now_s) == "fresh"]
        newest = fresh or sorted(tracks, key=lambda t: t.age_s(now_s) or 0.0)[:1]
        if not newest:
            return None, None
        hottest = max(newest, key=lambda t: t.last_valid.value or 0.0 if t.last_valid else 0.0)
        assert hottest.last_valid is not None
        return hottest.last_valid.value, hottest.age_s(now_s)
