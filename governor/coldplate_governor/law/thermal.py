"""The thermal budget of one heatsink: a PI controller with back-calculation, asymmetric slew and a brake on rises.

    T     = T + filter (median of 3 - T)                    e = target - T, of the device nearest its target
    raw   = kp (e - td max(0, trend)) + I                    the trend brakes a rise and never speeds a recovery
    u     = slew(clamp(raw, least, most))
    I    += dt (kp/ti e + (u held by every cap - raw) / tt)  back-calculation, Astrom & Hagglund

The integral is a share of duty between -1 and 1. What it tracks are caps, not demand: tracking the power really used
loses 6 to 9 % of the work under bursts, because the budget then crawls up from idle after each lull (governor.md B5).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coldplate.profile import Gains
from coldplate_governor.law.guard import WINDOW
from coldplate_governor.law.state import HeatState

_TREND_TIME_S = 15.0  # slow: one step of a 1 °C sensor must not move the duty
_RISE_AGAIN_S = 0.05
# A reading near the target that stays the same may be a frozen sensor: then the budget creeps, by 0.05 in two minutes.
_STILL_S, _STILL_CELSIUS, _CREEP_PER_S = 8.0, 4.0, 0.0004


@dataclass(frozen=True, slots=True)
class Driver:
    """A device as the controller sees it: degC below its target, degC/s, and for how long it has read the same."""

    error: float
    trend_per_s: float
    unchanged_s: float


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget ``slewed`` and its parts; ``error`` is that of the device that drives it, whose reading is ``still``
    or not."""

    error: float
    still: bool
    p: float
    d: float
    i: float
    raw: float
    slewed: float


def filtered(state: HeatState, celsius: float, fresh_s: float, dt: float, weight: float) -> HeatState:
    """Take one temperature, measured at ``fresh_s``, into the filters."""
    samples = state.samples
    if samples and fresh_s - samples[-1][0] < _RISE_AGAIN_S:
        fresh_s = samples[-1][0] + dt  # the same moment told again: time has passed without a change
    unchanged = state.unchanged_s + dt if samples and samples[-1][1] == celsius else 0.0
    samples = (*samples[1 - WINDOW :], (fresh_s, celsius))
    last = sorted(value for _, value in samples[-3:])
    middle = last[len(last) // 2]
    before = middle if state.filtered is None else state.filtered
    now = before + weight * (middle - before)
    step = dt / (_TREND_TIME_S + dt)
    trend = state.trend_per_s + step * ((now - before) / dt - state.trend_per_s)
    return HeatState(now, trend, samples, unchanged, state.guard_hits)


def budget(
    gains: Gains,
    drivers: Sequence[Driver],
    integral: float,
    before: float,
    bounds: tuple[float, float],
    may_rise: bool,
    dt: float,
) -> Budget:
    """The budget from every device that counts; the one nearest its limit drives it."""
    kp, td = gains.kp, gains.td_s
    driver = min(drivers, key=lambda driver: driver.error - td * max(0.0, driver.trend_per_s))
    error = driver.error
    p, d = kp * error, -kp * td * max(0.0, driver.trend_per_s)
    raw = p + d + integral
    low, high = bounds
    most = before + (gains.slew_up_per_s * dt if may_rise else 0.0)
    slewed = min(most, max(before - gains.slew_down_per_s * dt, raw))
    still = driver.unchanged_s >= _STILL_S and abs(error) < _STILL_CELSIUS
    return Budget(error, still, p, d, integral, raw, min(high, max(low, slewed)))


def integrated(gains: Gains, result: Budget, held: float, frozen: bool, dt: float) -> float:
    """The next integral, given what the caps left of the budget. ``frozen`` lets it fall only."""
    growth = gains.kp / gains.ti_s * result.error + (held - result.raw) / gains.tt_s
    if frozen:
        growth = min(0.0, growth)
    elif result.still:
        growth = min(_CREEP_PER_S, growth)
    return min(1.0, max(-1.0, result.i + dt * growth))
