"""What has happened to one device: what binds and since when, and the last changes, for status, log and metrics."""

from dataclasses import dataclass

from coldplate_governor.explain.change import Change, change_of
from coldplate_governor.explain.clears import clears
from coldplate_governor.explain.tick import Tick
from coldplate_governor.law import Decision

KEPT_CHANGES = 8
_PACE = frozenset({"duty", "max_prefill_tokens", "clock_share"})
_PACE_RUNGS = frozenset({"duty", "prefill_budget", "clock"})


@dataclass(frozen=True, slots=True)
class Account:
    """Why a device is as it is. Moments are monotonic seconds; ``changes`` are the newest first.

    ``firmware_events`` counts how often its firmware has begun to throttle, ``changes_made`` all changes, kept or not.
    """

    at_s: float
    decision: Decision
    binding_since_s: float
    mode_since_s: float
    clears: tuple[str, ...]
    changes: tuple[Change, ...]
    firmware_events: int = 0
    changes_made: int = 0


class Trail:
    """Follows one device from decision to decision."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._firmware_events = 0
        self._changes_made = 0
        self._last: Decision | None = None
        self._binding_since_s = 0.0
        self._mode_since_s = 0.0
        self._throttles = False
        self._changes: tuple[Change, ...] = ()

    def follow(self, tick: Tick) -> tuple[Change | None, Account]:
        """Take one tick; returns the change it made, if any, and the account after it.

        The controller at work, moving the pace and nothing else, is not among the changes that are kept.
        """
        decision, last = tick.decisions[self.device], self._last
        change = change_of(self.device, tick, last)
        if last is None or last.binding != decision.binding:
            self._binding_since_s = tick.now_s
        if last is None or last.mode != decision.mode:
            self._mode_since_s = tick.now_s
        throttles = any(cause.code == "FIRMWARE_THROTTLES" for cause in decision.causes)
        self._firmware_events += throttles and not self._throttles
        self._throttles = throttles
        self._changes_made += change is not None
        if change is not None and not _is_drift(change):
            self._changes = (change, *self._changes[: KEPT_CHANGES - 1])
        self._last = decision
        neighbours = tuple(name for name in tick.decisions if name != self.device)
        said = clears(tick.profile, decision, tick.inputs[self.device], neighbours)
        account = Account(
            *(tick.now_s, decision, self._binding_since_s, self._mode_since_s, said, self._changes),
            *(self._firmware_events, self._changes_made),
        )
        return change, account


def _is_drift(change: Change) -> bool:
    if change.first or (change.mode_from, change.binding_from) != (change.mode_to, change.binding_to):
        return False
    rungs = set(change.rungs_from) ^ set(change.rungs_to)
    return rungs <= _PACE_RUNGS and all(step.name in _PACE for step in change.limits)
