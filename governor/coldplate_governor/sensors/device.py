"""All that is known of one device: its tracks, fused into what the law and the server are told."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coldplate_governor.sensors.base import HEALTH, QUANTITIES, WORDS
from coldplate_governor.sensors.validate import FRESH_S, SAME_SAMPLE_S, QuantityTrack

_MEMORY = ("memory_used_bytes", "memory_total_bytes")
_CHIP_TEMPERATURE = "temperature_celsius"
_OTHER_TEMPERATURES = ("board_temperature_celsius", "memory_temperature_celsius")
_POWERS = ("power_watts", "card_power_watts")  # the chip's own before its card's
_POWER_SMOOTHING_S = 5.0  # a prefill's spike is over before a junction has moved by a degree
_SUSPECT_CELSIUS, _SUSPECT_S = 10.0, 20.0


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """Fused readings at one moment. Quantities not measured are absent from ``values``.

    ``temperature_age_s`` is None when no temperature was ever believed; otherwise ``last_temperature_celsius`` is the
    last believed one (the hottest of chip, board and memory), which ``values`` holds only while it is fresh.
    ``ages`` has the age in seconds of each quantity's newest believed value, ``doubted`` says by ``source.quantity``
    why the newest reading is not believed, ``suspect`` why the temperature does not fit the model of the device.
    ``unusable`` are the sensors that cannot work here.
    """

    values: dict[str, float] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()
    age_s: float | None = None
    last_temperature_celsius: float | None = None
    temperature_age_s: float | None = None
    ages: dict[str, float] = field(default_factory=dict)
    doubted: dict[str, str] = field(default_factory=dict)
    suspect: str | None = None

    @property
    def error_codes(self) -> tuple[str, ...]:
        """The device's fault events in hexadecimal."""
        return tuple(self.words.get("error_codes", "").split())


class DeviceSensors:
    """Takes samples of one device's sensors and fuses them: the hottest temperature, the smallest memory."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, str], QuantityTrack] = {}
        self._words: dict[tuple[str, str], tuple[str, float]] = {}
        self._unusable: set[str] = set()
        self._power = _SmoothPower()
        self._expected_off_since_s: float | None = None
        self._suspect: str | None = None

    def take(self, source: str, readings: Mapping[str, Any], at_s: float) -> None:
        """Judge one sample; a bad field does not take the others with it."""
        for name in sorted(readings, key=_powers_first):
            raw = readings[name]
            if name in QUANTITIES:
                self._take_number(source, name, raw, at_s)
            elif name in WORDS and (word := _believed_word(name, raw)) is not None:
                self._words[source, name] = (word, at_s)

    def note(self, source: str, unusable: bool) -> None:
        """Whether the sensor's last answer was that it cannot work here."""
        (self._unusable.add if unusable else self._unusable.discard)(source)

    def expect(self, celsius: float | None, at_s: float) -> None:
        """Hold the temperature against a model's, None when the model has no say.

        10 °C apart for 20 s makes the sensor (or the model: dust, a stopped fan) suspect; the reading still counts.
        """
        measured, age = self._temperature(at_s)
        if (
            celsius is None
            or not math.isfinite(celsius)
            or measured is None
            or age is None
            or age >= FRESH_S
            or abs(measured - celsius) <= _SUSPECT_CELSIUS
        ):
            self._expected_off_since_s = self._suspect = None
        elif self._expected_off_since_s is None:
            self._expected_off_since_s = at_s
        elif at_s - self._expected_off_since_s >= _SUSPECT_S:
            seconds = at_s - self._expected_off_since_s
            self._suspect = f"{measured:.1f} °C for {seconds:.0f} s where the model expects {celsius:.1f}"

    def problems(self) -> dict[str, str]:
        """Why the newest reading of a quantity is not believed, by ``source.quantity``."""
        return {f"{t.source}.{t.name}": t.last_problem for t in self._tracks.values() if t.last_problem}

    def fuse(self, now_s: float) -> DeviceReadings:
        fresh = {key: track for key, track in self._tracks.items() if track.standing(now_s) == "fresh"}
        lost = tuple(f"{t.source}.{t.name}" for t in self._tracks.values() if t.standing(now_s) == "lost")
        by_name: dict[str, list[QuantityTrack]] = {}
        for (_, name), track in fresh.items():
            by_name.setdefault(name, []).append(track)
        values = {name: _chosen(tracks, now_s) for name, tracks in by_name.items() if name not in _MEMORY}
        values |= self._memory(fresh)
        temperature, temperature_age = self._temperature(now_s)
        if _CHIP_TEMPERATURE in values and temperature is not None:
            values[_CHIP_TEMPERATURE] = temperature
        ages = self._ages(now_s)
        return DeviceReadings(
            values=values,
            words=self._fused_words(now_s),
            sources=tuple(dict.fromkeys(source for source, _ in fresh)),
            lost=lost,
            unusable=tuple(sorted(self._unusable)),
            age_s=min((ages[name] for name in by_name), default=None),
            last_temperature_celsius=temperature,
            temperature_age_s=temperature_age,
            ages=ages,
            doubted=self.problems(),
            suspect=self._suspect,
        )

    def _take_number(self, source: str, name: str, raw: Any, at_s: float) -> None:
        track = self._tracks.setdefault((source, name), QuantityTrack(source, name))
        others = [
            value
            for (other, quantity), peer in self._tracks.items()
            if quantity == name and other != source and (value := peer.fresh_value(at_s)) is not None
        ]
        reading = track.accept(raw, at_s, others, self._power.watts)
        measured = name in _POWERS and reading.value is not None and reading.at_s == at_s
        if measured and self._power.take((_POWERS.index(name), source), reading.value or 0.0, at_s):
            for each in self._tracks.values():
                each.forget_power()

    def _memory(self, fresh: Mapping[tuple[str, str], QuantityTrack]) -> dict[str, float]:
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
        """The hottest believed temperature and its age. Board and memory may only add to what the chip itself says:
        they are cooler when it matters, so they never stand in for it."""
        tracks = [t for (_, name), t in self._tracks.items() if name == _CHIP_TEMPERATURE and t.last_valid]
        if not tracks:
            return None, None
        fresh = [t for t in tracks if t.standing(now_s) == "fresh"]
        if not fresh:
            newest = min(tracks, key=lambda t: (t.age_s(now_s) or 0.0, -_value(t)))
            return _value(newest), newest.age_s(now_s)
        hottest = max(fresh, key=lambda t: (_value(t), -(t.age_s(now_s) or 0.0)))
        others = [
            value
            for (_, name), track in self._tracks.items()
            if name in _OTHER_TEMPERATURES and (value := track.fresh_value(now_s)) is not None
        ]
        return max([_value(hottest), *others]), hottest.age_s(now_s)

    def _ages(self, now_s: float) -> dict[str, float]:
        ages: dict[str, float] = {}
        for (_, name), track in self._tracks.items():
            age = track.age_s(now_s)
            if age is not None:
                ages[name] = min(age, ages.get(name, math.inf))
        return ages

    def _fused_words(self, now_s: float) -> dict[str, str]:
        """The worst health, every error code, and the newest of anything else."""
        fresh = sorted(
            (at_s, source, name, word)
            for (source, name), (word, at_s) in self._words.items()
            if now_s - at_s < WORDS[name][0]
        )
        fused: dict[str, str] = {}
        for _, _, name, word in fresh:
            if name == "health":
                word = max(word, fused.get(name, word), key=HEALTH.index)
            elif name == "error_codes":
                word = " ".join(sorted({*fused.get(name, "").split(), *word.split()}))
            fused[name] = word
        return fused


class _SmoothPower:
    """The power of a device, smoothed; of one sensor at a time, for two need not mean the same."""

    def __init__(self) -> None:
        self.watts: float | None = None
        self._key: tuple[int, str] | None = None
        self._at_s = 0.0

    def take(self, key: tuple[int, str], watts: float, at_s: float) -> bool:
        """Take a reading of the sensor ``key`` (the lesser key, the better); returns whether the sensor was changed."""
        lost = self._key is None or at_s - self._at_s >= 3 * _POWER_SMOOTHING_S
        if self._key is not None and key > self._key and not lost:
            return False
        changed = self._key is not None and key != self._key
        if changed or self.watts is None:
            self.watts = watts
        else:
            share = 1 - math.exp(-max(0.0, at_s - self._at_s) / _POWER_SMOOTHING_S)
            self.watts += share * (watts - self.watts)
        self._key, self._at_s = key, at_s
        return changed


def _powers_first(name: str) -> tuple[bool, str]:
    """The order in which fields of a sample are judged: a temperature is held against the power beside it."""
    return name not in _POWERS, name


def _value(track: QuantityTrack) -> float:
    assert track.last_valid is not None
    assert track.last_valid.value is not None
    return track.last_valid.value


def _chosen(tracks: list[QuantityTrack], now_s: float) -> float:
    """What counts of several sources that tell the same quantity."""
    rule = tracks[0].quantity.fuse
    if rule == "newest":
        newest = min(track.age_s(now_s) or 0.0 for track in tracks)
        tracks = [track for track in tracks if (track.age_s(now_s) or 0.0) - newest < SAME_SAMPLE_S]
    values = [_value(track) for track in tracks]
    return min(values) if rule == "min" else max(values)


def _believed_word(name: str, raw: Any) -> str | None:
    if not isinstance(raw, str) or len(raw) > WORDS[name][1] or not (raw.isascii() and (raw.isprintable() or not raw)):
        return None
    return None if name == "health" and raw not in HEALTH else raw
