"""The record of one change: what was decided anew for a device, and everything it was decided by."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from coldplate.limits import FIELD_NAMES
from coldplate.words import limit_words, share_words
from coldplate_governor.explain.tick import Tick
from coldplate_governor.law import Decision, Inputs, Terms

_DUTY_WORTH_A_LINE = 0.1


@dataclass(frozen=True, slots=True)
class LimitStep:
    """One limit before and after; None is no limit."""

    name: str
    old: Any
    new: Any

    @property
    def text(self) -> str:
        """The step in words."""
        if isinstance(self.old, float) and isinstance(self.new, float):
            return f"{self.name} {share_words(self.old, self.new)}"
        return f"{self.name} {limit_words(self.name, self.old)} → {limit_words(self.name, self.new)}"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of what a device gets. ``at_s`` is monotonic seconds.

    ``inputs`` are what the law was told; ``ages`` how many seconds old they were, ``doubted`` why a newest reading is
    not believed. ``first`` marks the first decision for a device, which has nothing before it.
    """

    at_s: float
    device: str
    mode_from: str
    mode_to: str
    binding_from: str
    binding_to: str
    limits: tuple[LimitStep, ...]
    rungs_from: tuple[str, ...]
    rungs_to: tuple[str, ...]
    rule: str
    causes: tuple[tuple[str, str], ...]
    terms: Terms
    dwell_left_s: float
    inputs: Inputs
    ages: Mapping[str, float] = field(default_factory=dict)
    doubted: Mapping[str, str] = field(default_factory=dict)
    first: bool = False

    @property
    def text(self) -> str:
        """The change as one readable line, without the device."""
        parts = []
        if self.first:
            parts.append(self.mode_to)
        elif self.mode_from != self.mode_to:
            parts.append(f"{self.mode_from} → {self.mode_to}")
        parts += [step.text for step in self.limits]
        if self.binding_from != self.binding_to:
            parts.append(f"bound by {self.binding_to}" if self.binding_to != "none" else "nothing binds any more")
        if self.rungs_from != self.rungs_to and not parts:
            parts.append(f"rungs {', '.join(self.rungs_to) or 'none'}")
        why = "; ".join(text for _, text in self.causes)
        return ", ".join(parts or ["other causes"]) + (f": {why}" if why else "")


def key(decision: Decision) -> tuple[Any, ...]:
    """What makes a decision another one: everything but the terms, the dwell and the words with their numbers."""
    codes = tuple(cause.code for cause in decision.causes)
    return (
        *(decision.limits, decision.mode, decision.binding, decision.rungs, decision.rule),
        *(decision.clock_share, codes),
    )


def change_of(device: str, tick: Tick, previous: Decision | None) -> Change | None:
    """The record of what ``tick`` changed for ``device``; None when it changed nothing."""
    decision = tick.decisions[device]
    if previous is not None and key(previous) == key(decision):
        return None
    old = previous.limits if previous else None
    steps = tuple(
        LimitStep(name, before, after)
        for name in FIELD_NAMES
        if (before := getattr(old, name, None)) != (after := getattr(decision.limits, name))
    )
    clock = previous.clock_share if previous else None
    if clock != decision.clock_share:
        steps += (LimitStep("clock_share", clock, decision.clock_share),)
    return Change(
        at_s=tick.now_s,
        device=device,
        mode_from=previous.mode if previous else "",
        mode_to=decision.mode,
        binding_from=previous.binding if previous else "none",
        binding_to=decision.binding,
        limits=steps,
        rungs_from=previous.rungs if previous else (),
        rungs_to=decision.rungs,
        rule=decision.rule,
        causes=tuple((cause.code, cause.text) for cause in decision.causes),
        terms=decision.terms,
        dwell_left_s=decision.dwell_left_s,
        inputs=tick.inputs[device],
        ages=tick.ages.get(device, {}),
        doubted=tick.doubted.get(device, {}),
        first=previous is None,
    )


def missing(change: Change) -> tuple[str, ...]:
    """What the record should say and does not; empty for a complete one.

    A device without a temperature has no thermal terms, and one that gets no hotter has no time to its limit.
    """
    lacks = [name for name in ("device", "mode_to", "binding_to") if not getattr(change, name)]
    if not change.first and not change.mode_from:
        lacks.append("mode_from")
    if not change.rule:
        lacks.append("rule")
    if change.binding_to != "none" and not change.causes:
        lacks.append("causes")
    terms = change.terms
    if change.inputs.temperature_celsius is not None:
        lacks += [f"terms.{item.name}" for item in fields(terms) if _lacks_term(terms, item.name)]
        if "temperature_celsius" not in change.ages and change.inputs.temperature_age_s is None:
            lacks.append("ages.temperature_celsius")
    measured = (item.name for item in fields(change.inputs) if item.name in MEASURED)
    lacks += [
        f"ages.{name}"
        for name in measured
        if name != "temperature_celsius" and getattr(change.inputs, name) is not None and name not in change.ages
    ]
    return tuple(lacks)


# Inputs that sensors tell, each with an age; the rest come from the server or the profile.
MEASURED = frozenset(
    {
        "temperature_celsius",
        "power_watts",
        "utilization_percent",
        "memory_used_bytes",
        "memory_total_bytes",
        "memory_pressure_percent",
        "frequency_mhz",
        "rated_frequency_mhz",
        "cpu_pressure_percent",
    }
)


def _lacks_term(terms: Terms, name: str) -> bool:
    if getattr(terms, name) is not None:
        return False
    return name not in ("feed_forward", "seconds_to_limit")


def worth_a_line(logged: Decision | None, decision: Decision) -> bool:
    """Whether a person wants to read of it: not of each hundredth of a duty that is on its way."""
    if logged is None:
        return True
    old, new = logged, decision
    if (old.mode, old.binding, old.limits.max_batch) != (new.mode, new.binding, new.limits.max_batch):
        return True
    if {cause.code for cause in old.causes} != {cause.code for cause in new.causes} and new.mode != "NOMINAL":
        return True
    return abs(old.duty - new.duty) >= _DUTY_WORTH_A_LINE or (old.duty < 1 and new.duty == 1)
