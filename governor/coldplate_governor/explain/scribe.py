"""Takes every tick of the loop and tells it: to the log in one line per change, to status, and to the recording."""

from typing import Protocol

import structlog

from coldplate_governor.explain.change import Change, worth_a_line
from coldplate_governor.explain.tick import Tick
from coldplate_governor.explain.trail import Account, Trail
from coldplate_governor.law import Decision

log = structlog.get_logger(__name__)


class TickSink(Protocol):
    """Where ticks are recorded. ``tick`` neither blocks nor raises."""

    def tick(self, tick: Tick) -> None: ...


class Scribe:
    """One for the whole loop; ``sink`` None records nothing."""

    def __init__(self, sink: TickSink | None = None) -> None:
        self._sink = sink
        self._trails: dict[str, Trail] = {}
        self._logged: dict[str, Decision] = {}

    def note(self, tick: Tick) -> dict[str, Account]:
        """Tell of one tick; returns the account of each device."""
        if self._sink is not None:
            self._sink.tick(tick)
        accounts = {}
        for device, decision in tick.decisions.items():
            trail = self._trails.setdefault(device, Trail(device))
            change, accounts[device] = trail.follow(tick)
            if change is not None and worth_a_line(self._logged.get(device), decision):
                _say(change, tick.profile.name)
                self._logged[device] = decision
        return accounts


def _say(change: Change, profile: str) -> None:
    if change.first and not change.limits:
        log.info("governing", device=change.device, profile=profile)
        return
    limits = {step.name: step.new for step in change.limits}
    log.info(
        "limits",
        device=change.device,
        mode=change.mode_to,
        binding=change.binding_to,
        **limits,
        rule=change.rule,
        change=change.text,
    )
