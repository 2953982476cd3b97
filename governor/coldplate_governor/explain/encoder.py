"""Ticks to the lines of a recording. Every file, and every tick after a loss, begins with all that a replay needs."""

import platform
from collections.abc import Mapping
from typing import Any

from coldplate import __version__
from coldplate_governor.explain import lines
from coldplate_governor.explain.change import key
from coldplate_governor.explain.codec import to_json
from coldplate_governor.explain.law_id import law_id
from coldplate_governor.explain.tick import Tick
from coldplate_governor.law import Decision, LawState

FORMAT = 1
STATE_EVERY_S = 60.0


class TickEncoder:
    """Encodes the ticks of one start of the governor, ``epoch``; remembers what the file it writes to holds already."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._number = 0
        self._groups: dict[str, _Group] = {}

    def start(self, continues: bool = False) -> bytes:
        """The first line of a file. ``continues``: the file before it holds the ticks before."""
        self._number = 0
        self._groups.clear()
        body = {
            "kind": "start",
            "format": FORMAT,
            "version": __version__,
            "law": law_id(),
            "epoch": self._epoch,
            "continues": continues,
            "python": platform.python_version(),
            "machine": platform.machine(),
        }
        return self._line(body)

    def gap(self, lost: int) -> bytes:
        """The line after a loss of ``lost`` ticks: what comes next begins anew."""
        self._groups.clear()
        return self._line({"kind": "gap", "lost": lost})

    def tick(self, tick: Tick) -> bytes:
        """The lines of one tick: mostly one, and one more where a profile or a state has to come first."""
        group = self._groups.get(tick.group)
        out = b""
        if group is None or group.profile is not tick.profile:
            out += self._line({"kind": "group", "group": tick.group, "profile": to_json(tick.profile)})
            group = self._groups[tick.group] = _Group(tick, group)
        if group.state_due(tick):
            group.state_at_s = tick.now_s
            last = {device: to_json(decision) for device, decision in group.last.items()}
            state = {"kind": "state", "at": tick.now_s, "group": tick.group, "state": to_json(tick.before)}
            out += self._line({**state, "last": last})
        out += self._line(self._body(tick, group))
        group.after = tick.after
        group.last = dict(tick.decisions)
        return out

    def _body(self, tick: Tick, group: "_Group") -> dict[str, Any]:
        changed = [
            device
            for device, decision in sorted(tick.decisions.items())
            if (last := group.last.get(device)) is None or key(last) != key(decision)
        ]
        body: dict[str, Any] = {
            "kind": "tick",
            "at": tick.now_s,
            "group": tick.group,
            "in": {device: to_json(inputs) for device, inputs in sorted(tick.inputs.items())},
            "out": outcome_digest(tick.after, tick.decisions),
        }
        if changed:
            body["changed"] = {device: to_json(tick.decisions[device]) for device in changed}
            body["ages"] = {device: dict(tick.ages[device]) for device in changed if tick.ages.get(device)}
            body["doubted"] = {device: dict(tick.doubted[device]) for device in changed if tick.doubted.get(device)}
        return body

    def _line(self, body: dict[str, Any]) -> bytes:
        self._number += 1
        return lines.seal({**body, "n": self._number})


class _Group:
    """What the file says of a group so far."""

    def __init__(self, tick: Tick, before: "_Group | None") -> None:
        self.profile = tick.profile
        self.state_at_s: float | None = None
        self.after: LawState | None = None
        self.last: dict[str, Decision] = before.last if before else {}

    def state_due(self, tick: Tick) -> bool:
        return (
            self.state_at_s is None
            or tick.before is not self.after  # someone else has changed the state in between
            or tick.now_s - self.state_at_s >= STATE_EVERY_S
        )


def outcome_digest(after: LawState, decisions: Mapping[str, Decision]) -> str:
    """Stands for every bit of what the law gave."""
    return lines.digest([to_json(after), {device: to_json(decision) for device, decision in decisions.items()}])
