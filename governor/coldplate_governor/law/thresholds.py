"""The temperatures one device is steered by: its profile's, tightened by what its firmware tells and does.

The firmware's thresholds may only tighten a profile. One that cannot be true is dropped, with a cause that says so: a
trip point of -274 °C once throttled a cool processor (thermald #550).
"""

from dataclasses import dataclass

from coldplate.profile import DeviceProfile
from coldplate_governor.law.state import FirmwareState
from coldplate_governor.law.types import Cause, Inputs

_LIMIT_RANGE = (65.0, 125.0)  # idle chips have been seen at 71 °C: firmware that throttles below 65 never computes
_RESET_RANGE = (75.0, 150.0)
_RESET_MARGIN = 5.0
_LEAST_MARGIN = 2.0
_DEEPEST_LEARNED = 10.0  # a learned limit lowers the target by at most this
_FORGET_PER_S = 1 / 1800  # a learned limit comes back by 1 °C in half an hour


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Degrees Celsius: what is held, where the firmware acts, where all stops."""

    target: float
    cliff: float
    critical: float


def thresholds(
    profile: DeviceProfile, state: FirmwareState, inputs: Inputs, celsius: float | None
) -> tuple[FirmwareState, Thresholds, tuple[Cause, ...]]:
    """Judge what the firmware tells when it tells something new, and combine it with the profile.

    ``celsius`` is the last temperature before this decision: what is told waits until there is one to judge it by.
    """
    told = (inputs.firmware_limit_celsius, inputs.reset_celsius)
    if celsius is not None and told != (None, None) and told != (state.told_limit, state.told_reset):
        state = _judged(state, told, celsius)
    causes = () if state.refused is None else (Cause("FIRMWARE_LIMIT_ABSURD", state.refused),)
    heat = profile.temperature
    if state.limit_celsius is None and state.reset_celsius is None and state.learned_celsius is None:
        return state, Thresholds(heat.target_celsius, heat.firmware_cliff_celsius, heat.critical_celsius), causes
    margin = heat.firmware_cliff_celsius - heat.target_celsius
    cliff, critical = heat.firmware_cliff_celsius, heat.critical_celsius
    if state.limit_celsius is not None:
        cliff = min(cliff, state.limit_celsius)
    if state.reset_celsius is not None:
        critical = min(critical, state.reset_celsius - _RESET_MARGIN)
    target = min(heat.target_celsius, cliff - margin, critical - _LEAST_MARGIN - 1)
    if state.learned_celsius is not None:
        target = min(target, max(state.learned_celsius - margin, target - _DEEPEST_LEARNED))
    return state, Thresholds(target, cliff, critical), causes


def learned(profile: DeviceProfile, state: FirmwareState, at_celsius: float | None, dt: float) -> float | None:
    """The learned limit for the next decision: lowered to where the firmware was just seen to throttle, else fading."""
    cliff = profile.temperature.firmware_cliff_celsius
    known = state.learned_celsius
    if at_celsius is not None:
        return min(at_celsius, known if known is not None else cliff)
    if known is None:
        return None
    known += dt * _FORGET_PER_S
    return known if known < cliff else None


def _judged(state: FirmwareState, told: tuple[float | None, float | None], celsius: float) -> FirmwareState:
    limit, reset = told
    refused: list[str] = []
    if limit is not None and (problem := _absurd(limit, _LIMIT_RANGE, celsius)):
        refused.append(f"the firmware says it throttles at {limit:g} °C, which {problem}")
        limit = None
    if reset is not None and (problem := _absurd(reset, _RESET_RANGE, celsius)):
        refused.append(f"the firmware says it resets at {reset:g} °C, which {problem}")
        reset = None
    text = "; ".join(refused) + ": the profile's limits hold" if refused else None
    return FirmwareState(told[0], told[1], limit, reset, text, state.throttling, state.events, state.learned_celsius)


def _absurd(value: float, allowed: tuple[float, float], celsius: float) -> str | None:
    low, high = allowed
    if not low <= value <= high:
        return f"is outside {low:g} to {high:g}"
    if value <= celsius:
        return f"is not above the present {celsius:.0f}"
    return None
