"""The guard: what does not wait for the controller.

It looks ahead along the slope of the last few samples. One of two rules must hold for two samples running, as thermald
asks for a run of hits, so that one bad sample does nothing; a temperature past critical does not wait.

The second rule is for a heatsink that has lost contact. A junction then rises by its whole power over its own heat
capacity, about 1.8 °C/s; above its target, where the controller already holds power back, nothing else rises like that
but a chip to which work has just come.
"""

from dataclasses import dataclass

from coldplate_governor.law.state import HeatState
from coldplate_governor.law.thresholds import Thresholds
from coldplate_governor.law.types import Cause

WINDOW = 8  # samples kept; the fast slope takes half of them, 3 s at one a second
_MARGIN_CELSIUS = 2.0
_RUN = 2
_RUNAWAY_PER_S = 1.0
# A chip on little power rises slower: then further above the target, by the slope of twice the time.
_CREEP_ABOVE_CELSIUS, _CREEP_PER_S = 2.0, 0.4
_SURGE_HORIZON = 0.4  # a junction follows its load within seconds and then stands still
_RUNAWAY_ABOVE_CELSIUS = 1.0


@dataclass(frozen=True, slots=True)
class Guard:
    """``fired`` is None while all is well. ``rise_per_s`` is the slope over the window."""

    hits: int
    rise_per_s: float
    predicted_celsius: float
    fired: Cause | None


def watch(state: HeatState, limits: Thresholds, horizon_s: float, surging: bool) -> Guard:
    """Look ahead from the samples in ``state``. ``surging``: work has just come, which explains a rise for a while."""
    celsius = state.samples[-1][1]
    rise = slope(state.samples[-WINDOW // 2 :])
    predicted = celsius + (_SURGE_HORIZON * horizon_s if surging else horizon_s) * max(0.0, rise)
    ahead = predicted >= limits.critical - _MARGIN_CELSIUS or celsius >= limits.critical
    runaway = not surging and (
        (celsius >= limits.target + _RUNAWAY_ABOVE_CELSIUS and rise >= _RUNAWAY_PER_S) or _creeps(state, limits)
    )
    hits = 0
    if ahead or runaway:
        # A single step, such as another sensor taking over, does not go on rising.
        near = celsius >= limits.critical - _MARGIN_CELSIUS
        goes_on = near or len(state.samples) < 2 or celsius > state.samples[-2][1]
        hits = min(state.guard_hits + goes_on, _RUN)
    fired = None
    if hits >= _RUN or celsius >= limits.critical + _MARGIN_CELSIUS:
        if runaway and not celsius >= limits.critical:
            rises = f"{celsius:.1f} °C rises by {rise:.1f} °C/s above the target of {limits.target:g}"
            fired = Cause("HEAT_RUNAWAY", f"{rises}: is the heatsink on?")
        else:
            text = f"{celsius:.1f} °C heads for {predicted:.1f}, critical is {limits.critical:g}"
            fired = Cause("GUARD", text)
    return Guard(hits, rise, predicted, fired)


def _creeps(state: HeatState, limits: Thresholds) -> bool:
    newest = [celsius for _, celsius in state.samples[-2:]]
    above = sum(newest) / len(newest) - limits.target
    return above >= _CREEP_ABOVE_CELSIUS and slope(state.samples) >= _CREEP_PER_S


def slope(samples: tuple[tuple[float, float], ...]) -> float:
    """Least-squares slope of (seconds, value) pairs; 0 for less than two moments."""
    count = len(samples)
    if count < 2:
        return 0.0
    mean_s = sum(at for at, _ in samples) / count
    mean = sum(value for _, value in samples) / count
    spread = sum((at - mean_s) ** 2 for at, _ in samples)
    if spread < 1e-9:
        return 0.0
    return sum((at - mean_s) * (value - mean) for at, value in samples) / spread
