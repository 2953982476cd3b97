"""Seeing that the firmware throttles: it says so, or the clock is low while the chip is busy.

The firmware's cut needs no second one on top; the claim freezes the integral, counts an event, and remembers the
temperature, because the target has been too near the true limit.
"""

from coldplate_governor.law.state import FirmwareState
from coldplate_governor.law.types import Cause, Inputs

_RATED_SHARE = 0.95
_BUSY_PERCENT = 20.0
_NO_THROTTLING = {"", "none", "idle"}
_NEAR_TARGET_CELSIUS = 10.0


def observed(inputs: Inputs, clock_share: float) -> tuple[float | None, Cause | None]:
    """Share of the rated clock the firmware allows, and the cause; (None, None) while it does not throttle.

    ``clock_share`` is what a frequency lever of ours asks for: a clock that low is our own doing.
    """
    words = {word.strip().lower() for word in (inputs.throttle_cause or "").split("+")} - _NO_THROTTLING
    now, rated, busy = inputs.frequency_mhz, inputs.rated_frequency_mhz, _busy_percent(inputs)
    share = None
    if now is not None and rated is not None and rated > 0 and busy is not None and busy >= _BUSY_PERCENT:
        share = max(0.0, now) / rated
        if share >= _RATED_SHARE * clock_share:
            share = None
    if not words and (share is None or inputs.throttle_cause is not None):
        return None, None  # the firmware knows better than the clock, when it tells at all
    told = f" ({' and '.join(sorted(words))})" if words else ""
    if share is None or now is None or rated is None:
        return 1.0, Cause("FIRMWARE_THROTTLES", f"the firmware lowers the clock by itself{told}")
    return share, Cause("FIRMWARE_THROTTLES", f"the firmware runs the chip at {now:.0f} of {rated:.0f} MHz{told}")


def learns_from(inputs: Inputs, celsius: float, target: float) -> bool:
    """Whether a throttling that begins at ``celsius`` tells of the firmware's thermal limit."""
    cause = inputs.throttle_cause
    if cause is not None:
        return "thermal" in cause.lower()
    return celsius >= target - _NEAR_TARGET_CELSIUS


def counted(state: FirmwareState, throttling: bool, learned_celsius: float | None) -> FirmwareState:
    """The state with what was seen now."""
    events = state.events + (throttling and not state.throttling)
    if (throttling, events, learned_celsius) == (state.throttling, state.events, state.learned_celsius):
        return state
    return FirmwareState(
        state.told_limit,
        state.told_reset,
        state.limit_celsius,
        state.reset_celsius,
        state.refused,
        throttling,
        events,
        learned_celsius,
    )


def _busy_percent(inputs: Inputs) -> float | None:
    if inputs.utilization_percent is not None:
        return inputs.utilization_percent
    return None if inputs.busy_share is None else 100 * inputs.busy_share
