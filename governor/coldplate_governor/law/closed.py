"""When a device that is closed is expected to admit again: what a refused client is told."""

from coldplate_governor.law.look import Seen
from coldplate_governor.law.modes import COOL_FOR_S, SEVERE, dwell_left_s, release_celsius
from coldplate_governor.law.state import ModeState

_LEAST_FALL_PER_S = 0.05  # a slow heatsink; a slower fall is no estimate
_MOST_S = 900.0


def retry_after_s(seen: Seen, mode: ModeState, now_s: float) -> float | None:
    """Seconds by the longer of dwell and cooling at the present rate; None while the device admits."""
    if mode.mode not in SEVERE:
        return None
    dwell = dwell_left_s(mode, now_s)
    filtered = seen.heat.filtered
    above = 0.0 if filtered is None else filtered - release_celsius(mode, seen.limits)
    if above <= 0:
        calm = mode.calm_since_s
        return round(max(dwell, 0.0 if calm is None else calm + COOL_FOR_S - now_s, 1.0), 1)
    fall = max(_LEAST_FALL_PER_S, -seen.heat.trend_per_s)
    return round(min(_MOST_S, max(dwell, above / fall + COOL_FOR_S)), 1)
