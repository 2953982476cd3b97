"""Replay: the recorded inputs through the law again, held against what it decided then, bit for bit."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coldplate.profile import DeviceProfile
from coldplate_governor.explain.change import Change, change_of
from coldplate_governor.explain.codec import CodecError, from_json, to_json
from coldplate_governor.explain.encoder import FORMAT, outcome_digest
from coldplate_governor.explain.law_id import law_id
from coldplate_governor.explain.lines import digest
from coldplate_governor.explain.recording import Damage, Entry
from coldplate_governor.explain.tick import Tick
from coldplate_governor.law import Decision, Inputs, LawState, decide

Law = Callable[[DeviceProfile, LawState, Mapping[str, Inputs], float], tuple[LawState, dict[str, Decision]]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first tick that came out otherwise: where, and what was then and is now."""

    place: str
    at_s: float
    group: str
    what: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        then, now = (_short(value) for value in (self.recorded, self.replayed))
        return f"{self.place}, at {self.at_s:.3f} s, {self.what}: recorded {then}, replayed {now}"


@dataclass(slots=True)
class ReplayReport:
    """What came of a replay. ``skipped`` ticks were recorded under another law, or follow on lines that are damaged."""

    ticks: int = 0
    identical: int = 0
    skipped: int = 0
    lost: int = 0
    starts: int = 0
    changes: int = 0
    first_s: float | None = None
    last_s: float | None = None
    versions: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    difference: Difference | None = None

    @property
    def damaged(self) -> bool:
        return any(not item.cut for item in self.damage)


@dataclass(slots=True)
class _Group:
    """A group in mid-replay: ``state`` is None until a recorded one has been read."""

    profile: DeviceProfile
    state: LawState | None = None
    last: dict[str, Decision] = field(default_factory=dict)
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """One tick that was decided again: the tick as it is now, what it changes, and what the record says of it."""

    entry: Entry
    tick: Tick
    changes: tuple[Change, ...]


class Replay:
    """Feed it every entry; ``report`` holds what came of it. ``run`` does both and stops at the first difference."""

    def __init__(self, from_s: float | None = None, law: Law = decide) -> None:
        """``from_s``: begin with the first state recorded at or after this moment."""
        self.report = ReplayReport()
        self._from_s = from_s
        self._law = law
        self._groups: dict[str, _Group] = {}
        self._usable = False
        self._epoch: Any = None

    def run(self, entries: Iterable[Entry | Damage]) -> Iterator[Replayed]:
        """Decide every tick again, in order, up to the first difference."""
        for entry in entries:
            if isinstance(entry, Damage):
                self._damaged(entry)
                continue
            try:
                replayed = self._take(entry)
            except (CodecError, KeyError, TypeError) as error:
                self._damaged(Damage(entry.file, entry.line, f"cannot be understood: {error}"))
                continue
            if replayed is not None:
                yield replayed
            if self.report.difference is not None:
                return

    def _take(self, entry: Entry) -> Replayed | None:
        body = entry.body
        if entry.kind == "start":
            self._start(entry)
        elif entry.kind == "gap":
            self.report.lost += int(body["lost"])
            self._forget()
        elif not self._usable:
            self.report.skipped += entry.kind == "tick"
        elif entry.kind == "group":
            profile = from_json(DeviceProfile, body["profile"])
            known = self._groups.get(body["group"])
            if known is None or known.profile != profile:
                self._groups[body["group"]] = _Group(profile, None, known.last if known else {})
        elif entry.kind == "state":
            self._state(entry)
        else:
            return self._tick(entry)
        return None

    def _start(self, entry: Entry) -> None:
        body, report = entry.body, self.report
        if not body["continues"]:
            report.starts += 1
        if body["version"] not in report.versions:
            report.versions.append(str(body["version"]))
        foreign = foreign_words(body)
        self._usable = foreign is None
        if foreign is not None and foreign not in report.foreign:
            report.foreign.append(foreign)
        if not body["continues"] or body["epoch"] != self._epoch:
            self._forget()
        self._epoch = body["epoch"]

    def _state(self, entry: Entry) -> None:
        body = entry.body
        group = self._groups[body["group"]]
        if self._from_s is not None and body["at"] < self._from_s:
            return
        state = from_json(LawState, body["state"])
        if group.state is not None and digest(now := to_json(group.state)) != digest(body["state"]):
            self._differs(entry, *_first_difference("state", body["state"], now))
            return
        group.state, group.begun = state, True
        group.last = {device: from_json(Decision, item) for device, item in body["last"].items()}

    def _tick(self, entry: Entry) -> Replayed | None:
        body, report = entry.body, self.report
        group = self._groups.get(body["group"])
        if group is None or group.state is None:
            report.skipped += self._from_s is None or (group is not None and group.begun)
            return None
        inputs = {device: from_json(Inputs, item) for device, item in body["in"].items()}
        after, decisions = self._law(group.profile, group.state, inputs, body["at"])
        report.ticks += 1
        report.first_s = body["at"] if report.first_s is None else report.first_s
        report.last_s = body["at"]
        if outcome_digest(after, decisions) != body["out"]:
            self._differs(entry, *self._what_differs(group, body, decisions))
            return None
        report.identical += 1
        tick = Tick(
            *(body["group"], group.profile, body["at"], group.state, inputs, after, decisions),
            ages=body.get("ages", {}),
            doubted=body.get("doubted", {}),
        )
        changes = tuple(
            change for device in sorted(decisions) if (change := change_of(device, tick, group.last.get(device)))
        )
        report.changes += len(changes)
        group.state, group.last = after, dict(decisions)
        return Replayed(entry, tick, changes)

    def _what_differs(
        self, group: _Group, body: Mapping[str, Any], decisions: Mapping[str, Decision]
    ) -> tuple[str, Any, Any]:
        changed = body.get("changed", {})
        for device in sorted(set(body["in"]) | set(decisions)):
            if device not in decisions:
                return f"{device}: the decision", "one", "none"
            now = to_json(decisions[device])
            if device in changed:
                if changed[device] != now:
                    return _first_difference(device, changed[device], now)
            elif (last := group.last.get(device)) is not None:
                # Not recorded again, so it was as before in all that makes a decision another one.
                for name in ("limits", "mode", "binding", "rungs", "rule", "clock_share"):
                    then, here = to_json(getattr(last, name)), to_json(getattr(decisions[device], name))
                    if then != here:
                        return _first_difference(f"{device}.{name}", then, here)
        return "a term or the state behind the decisions", f"digest {body['out']}", "another"

    def _differs(self, entry: Entry, what: str, recorded: Any, replayed: Any) -> None:
        body = entry.body
        self.report.difference = Difference(entry.place, body["at"], body["group"], what, recorded, replayed)

    def _damaged(self, damage: Damage) -> None:
        self.report.damage.append(damage)
        self._forget()

    def _forget(self) -> None:
        """Wait for the next recorded state of each group."""
        for group in self._groups.values():
            group.state = None


def foreign_words(start: Mapping[str, Any]) -> str | None:
    """Why a start line's recording cannot be replayed here; None when it can."""
    if start["format"] != FORMAT:
        return f"format {start['format']} of version {start['version']}; this version reads format {FORMAT}"
    if start["law"] != law_id():
        return f"law {start['law']} of version {start['version']}; this is law {law_id()}"
    return None


def _first_difference(what: str, recorded: Any, replayed: Any) -> tuple[str, Any, Any]:
    """The innermost field in which two JSON values differ, with its path."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        for name in [*recorded, *(name for name in replayed if name not in recorded)]:
            then, now = recorded.get(name), replayed.get(name)
            if repr(then) != repr(now):
                return _first_difference(f"{what}.{name}", then, now)
    if isinstance(recorded, list) and isinstance(replayed, list) and len(recorded) == len(replayed):
        for index, (then, now) in enumerate(zip(recorded, replayed, strict=True)):
            if repr(then) != repr(now):
                return _first_difference(f"{what}[{index}]", then, now)
    return what, recorded, replayed


def _short(value: Any) -> str:
    text = repr(value) if value is not None else "none"
    return text if len(text) <= 100 else text[:100] + "…"
