"""One decision for the devices on one heatsink: look at each, share the budget, fuse the claims, step the modes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coldplate.profile import DeviceProfile
from coldplate_governor.law import thermal
from coldplate_governor.law.conclude import Round, conclude, safe_duty
from coldplate_governor.law.look import Seen, look
from coldplate_governor.law.modes import SEVERE
from coldplate_governor.law.refit import refitted
from coldplate_governor.law.split import split
from coldplate_governor.law.state import DeviceState, LawState
from coldplate_governor.law.thermal import Budget
from coldplate_governor.law.types import PERIOD_S, Decision, Inputs, cleaned, number

_GAP_S = 30.0  # a gap this long is a suspend: what was known is old
_WARM_CELSIUS = 3.0  # below the target
_SHORTEST, _LONGEST = 0.2 * PERIOD_S, 3 * PERIOD_S


def decide(
    profile: DeviceProfile, state: LawState, inputs: Mapping[str, Inputs], now_s: float
) -> tuple[LawState, dict[str, Decision]]:
    """Decide for every device of ``inputs``, about once a second; ``now_s`` is monotonic. Never raises.

    A hotter device is never granted more in the same state, and the order of ``inputs`` does not matter.
    """
    given_s = number(now_s)
    now_s = given_s if given_s is not None else state.at_s or 0.0
    elapsed = PERIOD_S if state.at_s is None else now_s - state.at_s
    dt = min(_LONGEST, max(_SHORTEST, elapsed))
    state = refitted(profile, state)
    woke = elapsed > _GAP_S
    if woke:
        state = _lowered(profile, replace(state, woke_s=now_s))
    known = {device.name: device for device in state.devices}
    seen = [
        look(profile, known.get(name) or DeviceState(name), cleaned(inputs[name]), state.woke_s, dt, now_s)
        for name in sorted(inputs)
    ]
    if any(item.first and item.error < _WARM_CELSIUS for item in seen):
        state = _lowered(profile, state)  # warm when first seen: the budget grows from that of the safe limits
    budget = _budget(profile, state, seen, dt)
    shares = _shares(profile, budget, seen)
    common = Round(budget, profile.gains.slew_up_per_s * dt * len(seen), woke, dt, now_s)
    concluded = [conclude(profile, item, share, common) for item, share in zip(seen, shares, strict=True)]
    if budget is not None:
        held = sum(item.held for item in concluded) / len(concluded)
        frozen = any(item.clock_allowed is not None for item in seen)
        slewed, integral = budget.slewed, thermal.integrated(profile.gains, budget, held, frozen, dt)
    elif seen and profile.kind == "npu":
        slewed = integral = safe_duty(profile)  # limits grow from here once a temperature comes
    else:
        slewed, integral = state.budget, state.integral
    devices = tuple(item.state for item in concluded)
    if len(seen) == 1:
        slewed, integral, devices = _reclocked(seen[0].before, devices[0], budget, slewed, integral)
    return (
        LawState(now_s, state.woke_s, slewed, integral, state.profile, devices),
        {item.state.name: item.decision for item in concluded},
    )


def _lowered(profile: DeviceProfile, state: LawState) -> LawState:
    """The state with its budget at most that of the safe limits."""
    safe = safe_duty(profile)
    return replace(state, budget=min(state.budget, safe), integral=min(state.integral, safe))


def _reclocked(
    before: DeviceState, device: DeviceState, budget: Budget | None, slewed: float, integral: float
) -> tuple[float, float, tuple[DeviceState, ...]]:
    """Budget, integral and device after a step of the clock: duty times clock stays, so that the step is no bump."""
    ratio = before.clock.share / device.clock.share
    if ratio == 1 or budget is None or device.mode.mode in SEVERE:
        return slewed, integral, (device,)
    duty = min(1.0, device.duty * ratio)
    integral = min(1.0, integral + duty - device.duty)
    return min(1.0, slewed * ratio), integral, (replace(device, duty=duty),)


def _budget(profile: DeviceProfile, state: LawState, seen: Sequence[Seen], dt: float) -> Budget | None:
    """The heatsink's budget, driven by the hottest device; None without any temperature.

    A device that is CRITICAL or given up is out of the controller's hands: its heat must not close its neighbours.
    """
    measured = [item for item in seen if item.trust.celsius is not None]
    if not measured:
        return None
    driving = [item for item in measured if item.before.mode.mode not in SEVERE] or measured
    may_rise = all(item.trust.level == "fresh" and not item.trust.doubted for item in driving)
    serving = sum(item.before.mode.mode not in SEVERE for item in seen) or len(seen)
    low = profile.levers.min_duty
    bounds = (low * serving / len(seen), serving / len(seen))
    drivers = [thermal.Driver(item.error, item.heat.trend_per_s, item.heat.unchanged_s) for item in driving]
    return thermal.budget(profile.gains, drivers, state.integral, state.budget, bounds, may_rise, dt)


def _shares(profile: DeviceProfile, budget: Budget | None, seen: Sequence[Seen]) -> list[float]:
    """What each device may use, in the order of ``seen``: one that cannot serve leaves its share to the others."""
    if budget is None:
        return [safe_duty(profile) if profile.kind == "npu" else 1.0] * len(seen)
    if len(seen) == 1:
        return [budget.slewed]
    requests = {item.before.name: 0.0 if item.before.mode.mode in SEVERE else item.before.demand for item in seen}
    grants = split(budget.slewed * len(seen), requests)
    return [max(profile.levers.min_duty, grants[item.before.name]) for item in seen]
