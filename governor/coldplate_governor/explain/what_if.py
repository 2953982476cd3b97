"""What another profile, or this law, would have done with the inputs that were recorded.

The inputs are those of the run as it was: a temperature that other decisions would have changed does not change.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coldplate.profile import DeviceProfile
from coldplate_governor.explain.change import key
from coldplate_governor.explain.codec import CodecError, from_json
from coldplate_governor.explain.encoder import FORMAT
from coldplate_governor.explain.recording import Damage, Entry
from coldplate_governor.law import Decision, Inputs, LawState, decide


@dataclass(slots=True)
class Course:
    """How one device was governed: ``duty_sum`` over ``ticks``, ticks by mode, and changes."""

    ticks: int = 0
    duty_sum: float = 0.0
    lowest_duty: float = 1.0
    modes: Counter[str] = field(default_factory=Counter)
    changes: int = 0
    _last: tuple[Any, ...] | None = None

    @property
    def mean_duty(self) -> float:
        return self.duty_sum / self.ticks if self.ticks else 1.0

    def add(self, decision: Decision) -> None:
        self.ticks += 1
        self.duty_sum += decision.duty
        self.lowest_duty = min(self.lowest_duty, decision.duty)
        self.modes[decision.mode] += 1
        found = key(decision)
        self.changes += self._last is not None and found != self._last
        self._last = found


@dataclass(slots=True)
class Comparison:
    """One device: as it was, as it would have been, the hottest input, and when the two first part."""

    profile_then: str = ""
    profile_now: str = ""
    then: Course = field(default_factory=Course)
    now: Course = field(default_factory=Course)
    hottest_celsius: float | None = None
    parts_at_s: float | None = None


class WhatIf:
    """Runs entries through this law with ``profiles`` by device or, under the empty name, for every device they fit.

    A profile counts for a group when it is named for any of its devices. What cannot be read is in ``problems``.
    """

    def __init__(self, profiles: Mapping[str, DeviceProfile]) -> None:
        self.devices: dict[str, Comparison] = {}
        self.problems: list[str] = []
        self._profiles = profiles
        self._groups: dict[str, _Group] = {}
        self._readable = False

    def run(self, entries: Iterable[Entry | Damage]) -> None:
        for entry in entries:
            if isinstance(entry, Damage):
                if not entry.cut:
                    self._problem(f"{entry.place} {entry.problem}")
                continue
            try:
                self._take(entry)
            except (CodecError, KeyError, TypeError) as error:
                self._problem(f"{entry.place} cannot be understood: {error}")

    def _take(self, entry: Entry) -> None:
        body = entry.body
        if entry.kind == "start":
            self._readable = body["format"] == FORMAT
            if not self._readable:
                self._problem(f"{entry.place}: format {body['format']} of version {body['version']} is not read")
            if not body["continues"]:
                self._groups.clear()
        elif not self._readable or entry.kind == "gap":
            return
        elif entry.kind == "group":
            recorded = from_json(DeviceProfile, body["profile"], lenient=True)
            known = self._groups.get(body["group"])
            self._groups[body["group"]] = _Group(recorded, known.state if known else None, known.last if known else {})
        elif entry.kind == "state":
            self._state(body)
        else:
            self._tick(body)

    def _state(self, body: dict[str, Any]) -> None:
        group = self._groups[body["group"]]
        for device, item in body["last"].items():
            group.last[device] = from_json(Decision, item, lenient=True)
        if group.state is not None:
            return  # the course of its own goes on
        try:
            group.state = from_json(LawState, body["state"])
        except CodecError:
            group.state = LawState()
            self._problem("the recorded state is that of another law: this one begins with a fresh one")

    def _tick(self, body: dict[str, Any]) -> None:
        group = self._groups[body["group"]]
        if group.state is None:
            return
        inputs = {device: from_json(Inputs, item, lenient=True) for device, item in body["in"].items()}
        profile = self._profile(group.recorded, inputs)
        group.state, decisions = decide(profile, group.state, inputs, body["at"])
        for device, item in body.get("changed", {}).items():
            group.last[device] = from_json(Decision, item, lenient=True)
        for device, now in decisions.items():
            then = group.last.get(device)
            if then is None:
                continue
            compared = self.devices.setdefault(device, Comparison(group.recorded.name, profile.name))
            compared.then.add(then)
            compared.now.add(now)
            celsius = inputs[device].temperature_celsius
            if celsius is not None and not celsius <= (compared.hottest_celsius or 0.0):
                compared.hottest_celsius = celsius
            if compared.parts_at_s is None and (then.limits, then.mode) != (now.limits, now.mode):
                compared.parts_at_s = body["at"]

    def _profile(self, recorded: DeviceProfile, inputs: Mapping[str, Inputs]) -> DeviceProfile:
        for device in sorted(inputs):
            if device in self._profiles:
                return self._profiles[device]
        fallback = self._profiles.get("")
        return fallback if fallback is not None and fallback.kind == recorded.kind else recorded

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


@dataclass(slots=True)
class _Group:
    recorded: DeviceProfile
    state: LawState | None = None
    last: dict[str, Decision] = field(default_factory=dict)
