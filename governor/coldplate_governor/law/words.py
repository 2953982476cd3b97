"""The causes of a decision in words, each with its numbers and a stable code; the weightiest first."""

from coldplate.profile import DeviceProfile
from coldplate_governor.law.look import Seen
from coldplate_governor.law.modes import SEVERE, dwell_left_s, release_celsius
from coldplate_governor.law.state import ModeState
from coldplate_governor.law.types import Binding, Cause

_IDLE_SHARE = 0.1


def causes_of(
    profile: DeviceProfile, seen: Seen, mode: ModeState, duty: float, binding: Binding, now_s: float
) -> tuple[Cause, ...]:
    """Why the limits are as they are; nothing while nothing limits."""
    causes: list[Cause] = []
    if seen.guard is not None and seen.guard.fired is not None:
        causes.append(seen.guard.fired)
    if mode.mode in SEVERE:
        causes += _severe(seen, mode, now_s)
    causes += _sensor(seen, profile)
    if mode.mode == "RECOVERING":
        causes.append(Cause("RECOVERING", f"after {_after(mode)}: at most {2**mode.stage} streams, duty {duty:.2f}"))
    elif mode.rule == "TAKEOVER":
        causes.append(Cause("TAKEOVER", "it was above its target when first seen: taken over at safe limits"))
    if seen.inputs.draining:
        causes.append(Cause("DRAINING", "the device is being drained: nothing new is admitted"))
    if binding == "power" and seen.full_watts is not None:
        limit = seen.inputs.power_limit_watts
        text = f"the limit is {limit:.0f} W and full duty would draw {seen.full_watts:.0f} W: duty {duty:.2f}"
        causes.append(Cause("POWER_LIMIT", text))
    elif binding == "operator" and seen.inputs.other_duty is not None:
        causes.append(
            Cause("OPERATOR_LIMIT", f"someone else than the governor sets a duty of {seen.inputs.other_duty:g}")
        )
    if duty < 1 and mode.mode not in SEVERE and seen.heat.filtered is not None:
        causes += _heat(seen, duty, binding)
    if duty < 1 and not causes and not seen.causes:
        causes.append(Cause("DUTY_RISES", f"what held it back is over: duty {duty:.2f} on its way up"))
    return (*causes, *seen.causes)


def _severe(seen: Seen, mode: ModeState, now_s: float) -> list[Cause]:
    if mode.rule == "ENGINE_LOST":
        if seen.inputs.engine_up is False:
            return [Cause("ENGINE_LOST", "no worker serves the device")]
        return [Cause("ENGINE_LOST", f"its worker was lost: tried again in {dwell_left_s(mode, now_s):.0f} s")]
    celsius = seen.trust.celsius
    if celsius is None or (seen.guard is not None and seen.guard.fired is not None):
        return []
    left = dwell_left_s(mode, now_s)
    wait = f", at least {left:.0f} s more" if left > 0 else ""
    text = f"{celsius:.1f} °C, waiting for less than {release_celsius(mode, seen.limits):g}{wait}"
    if mode.rule == "STILL_RISING":
        return [Cause("STILL_RISING", f"it rose even at its least duty; {text}")]
    return [Cause("COOLING_DOWN", text)]


def _sensor(seen: Seen, profile: DeviceProfile) -> list[Cause]:
    trust = seen.trust
    if trust.level == "absent":
        absent = Cause("TEMPERATURE_ABSENT", "no temperature has been read: safe limits hold")
        return [absent] if profile.kind == "npu" else []
    if seen.trust_state.doubted_since_s is not None:
        told = seen.inputs.temperature_celsius
        words = "" if told is None else f" to {told:.0f} °C"
        text = f"the temperature fell{words} faster than a chip can cool from {seen.trust_state.celsius:.0f} °C"
        return [Cause("TEMPERATURE_DOUBTED", f"{text}: taken as {trust.celsius:.0f}")]
    if trust.level == "halved":
        return [Cause("TEMPERATURE_LOST", f"no temperature for {trust.age_s:.0f} s: duty at most 0.5")]
    if trust.level in ("floor", "lost"):
        return [Cause("TEMPERATURE_LOST", f"no temperature for {trust.age_s:.0f} s: the worst is assumed")]
    return []


def _heat(seen: Seen, duty: float, binding: Binding) -> list[Cause]:
    filtered, target = seen.heat.filtered or 0.0, seen.limits.target
    busy = seen.inputs.busy_share
    if filtered > target and busy is not None and busy < _IDLE_SHARE:
        text = f"{filtered:.1f} °C at {busy:.0%} busy: a fan, the air or a neighbour heats it, not its own work"
        return [Cause("HOT_WHILE_IDLE", text)]
    if binding != "thermal":
        return []
    code = "TEMPERATURE_ABOVE_TARGET" if filtered > target else "TEMPERATURE_NEAR_TARGET"
    trend = seen.heat.trend_per_s
    return [Cause(code, f"{filtered:.1f} °C against a target of {target:g}, trend {trend:+.2f} °C/s: duty {duty:.2f}")]


def _after(mode: ModeState) -> str:
    return {"GAP": "a long pause", "COOLED": "a critical temperature", "BACKOFF_OVER": "a loss"}.get(
        mode.rule, "trouble"
    )
