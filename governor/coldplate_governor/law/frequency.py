"""The wish for a lower clock, where a lever can set one: slow steps around which the duty goes on doing the fine work.

Dynamic power falls with the clock at least in proportion, and in practice faster, because the voltage follows. So once
duty times clock is no more than a lower clock gives at full duty, that clock computes as much and draws less. It is
tried again one step up when full duty at the lower one leaves the device below its target.
"""

from collections.abc import Sequence

from coldplate_governor.law.state import ClockState

_STEP, _LEAST = 0.1, 0.4  # of a clock that can be set to anything
_LOW_FOR_S, _FULL_FOR_S = 30.0, 90.0
_FULL_DUTY = 0.98
_COOL_CELSIUS = 1.0
_NEAR_CELSIUS = 3.0  # further below its target it is not heat that holds it back, and a lower clock only costs
_NONE = ClockState()


def wish(
    state: ClockState, steps: Sequence[float] | None, duty: float, below_celsius: float, critical: bool, now_s: float
) -> ClockState:
    """The wanted share of the rated clock. ``steps`` are those there are, none for any, None without a lever.

    ``below_celsius`` is how far the device is below its target. Critical is the lowest clock at once.
    """
    if steps is None:
        return state if state == _NONE else _NONE
    lower, higher = _neighbours(steps, state.share)
    if critical:
        least = min(steps, default=_LEAST)
        return ClockState(least, None, None, now_s) if state.share > least else state
    low = lower is not None and duty * state.share <= lower and below_celsius < _NEAR_CELSIUS
    full = higher is not None and duty >= _FULL_DUTY and below_celsius > _COOL_CELSIUS
    low_since = (now_s if state.low_since_s is None else state.low_since_s) if low else None
    full_since = (now_s if state.full_since_s is None else state.full_since_s) if full else None
    if lower is not None and low_since is not None and now_s - low_since >= _LOW_FOR_S:
        return ClockState(lower, None, None, now_s)
    if higher is not None and full_since is not None and now_s - full_since >= _FULL_FOR_S:
        return ClockState(higher, None, None, now_s)
    if (low_since, full_since) == (state.low_since_s, state.full_since_s):
        return state
    return ClockState(state.share, low_since, full_since, state.changed_s)


def _neighbours(steps: Sequence[float], share: float) -> tuple[float | None, float | None]:
    """The next lower and the next higher clock."""
    if not steps:
        lower = round(share - _STEP, 3)
        return (lower if lower >= _LEAST else None), (min(1.0, round(share + _STEP, 3)) if share < 1 else None)
    lower_ones = [step for step in steps if step < share - 1e-6]
    higher_ones = [step for step in steps if step > share + 1e-6]
    return max(lower_ones, default=None), min(higher_ones, default=None)
