"""The power claim: watts as a function of work, found by recursive least squares, and the duty that keeps a limit.

    P = c0 + c1 prefill_tokens/s + c2 decode_steps/s + c3 decode_tokens/s       or   P = c0 + c1 busy
    u = (limit - c0) / (what the dynamic part would be at full duty)

With forgetting, so that dust and ageing are followed (governor.md B2, B6). Without a power sensor nothing is claimed,
and heat is controlled all the same.
"""

from collections.abc import Sequence

from coldplate_governor.law.state import PowerState
from coldplate_governor.law.types import Inputs

_FORGET = 0.99
_START_COVARIANCE = 100.0
_MOST_COVARIANCE = 1e4
_SMOOTH_S = 3.0  # prefill spikes are short
_LEAST_BUSY = 0.1
_RATE_SCALES = (1e-3, 1e-1, 1e-2)  # brings tokens/s and steps/s near 1, for the numbers of the filter


def fit(state: PowerState, inputs: Inputs, duty: float, dt: float) -> PowerState:
    """Take one power sample into the model. ``duty`` stands for the busy share when that is unknown."""
    watts = inputs.power_watts
    if watts is None or watts <= 0:
        return state
    features = _features(inputs, duty)
    coefficients, covariance = state.coefficients, state.covariance
    if len(coefficients) != len(features):
        coefficients, covariance = _fresh(len(features), watts)
    coefficients, covariance = _update(coefficients, covariance, features, watts)
    before = watts if state.watts is None else state.watts
    return PowerState(coefficients, covariance, before + dt / (_SMOOTH_S + dt) * (watts - before), state.share)


def claim(
    state: PowerState, inputs: Inputs, duty: float, low: float, rise: float
) -> tuple[PowerState, float | None, float | None]:
    """The duty that keeps the power limit, and the modelled power at full duty; None without limit or samples.

    The claim falls at once and rises by at most ``rise``.
    """
    limit = inputs.power_limit_watts
    if limit is None or limit <= 0 or state.watts is None or not state.coefficients:
        return state, None, None
    busy = max(_LEAST_BUSY, _busy(inputs, duty))
    idle = min(max(0.0, state.coefficients[0]), state.watts)
    full = max(1e-3, (state.watts - idle) / busy)
    share = min(1.0, max(low, (limit - idle) / full))
    share = min(share, state.share + rise)
    return PowerState(state.coefficients, state.covariance, state.watts, share), share, idle + full


def _busy(inputs: Inputs, duty: float) -> float:
    return min(1.0, max(0.0, duty if inputs.busy_share is None else inputs.busy_share))


def _features(inputs: Inputs, duty: float) -> tuple[float, ...]:
    rates = (inputs.prefill_tokens_per_s, inputs.decode_steps_per_s, inputs.decode_tokens_per_s)
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        return (1.0, _busy(inputs, duty))
    return (1.0, *(min(1e3, max(0.0, rate * scale)) for rate, scale in zip(known, _RATE_SCALES, strict=True)))


def _fresh(size: int, watts: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    diagonal = tuple(_START_COVARIANCE if row == column else 0.0 for row in range(size) for column in range(size))
    return (min(watts, 1e6) / 2,) + (0.0,) * (size - 1), diagonal


def _update(
    coefficients: Sequence[float], covariance: Sequence[float], features: Sequence[float], watts: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """One step of recursive least squares with forgetting; without excitation the covariance stays bounded."""
    size = len(features)
    watts = min(watts, 1e6)
    rows = range(size)
    gains = [sum(covariance[row * size + column] * features[column] for column in rows) for row in rows]
    scale = _FORGET + sum(features[row] * gains[row] for row in rows)
    if not scale > 1e-9:  # rounding has made it indefinite
        return _fresh(size, watts)
    error = watts - sum(coefficients[row] * features[row] for row in rows)
    updated = tuple(coefficients[row] + gains[row] / scale * error for row in rows)
    spread = [
        (covariance[row * size + column] - gains[row] * gains[column] / scale) / _FORGET
        for row in rows
        for column in rows
    ]
    trace = sum(spread[row * size + row] for row in rows)
    if trace > _MOST_COVARIANCE * size:
        shrink = _MOST_COVARIANCE * size / trace
        spread = [value * shrink for value in spread]
    if not all(-1e12 < value < 1e12 for value in updated):
        return _fresh(size, watts)
    return updated, tuple(spread)
