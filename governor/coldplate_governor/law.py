"""The law: from what is seen of a device to the limits it gets, as a pure function of state, inputs and monotonic time.

``decide`` is the seam a richer law replaces: the loop around it knows only ``LawState``, ``Inputs`` and ``Decision``.

Temperature: a PI controller on the filtered error, with back-calculation of what slew and other caps take away, a brake
on rises only, and a guard that does not wait for it. Memory: a batch cap that tightens by a quarter while memory is
short.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from coldplate.limits import Limits
from coldplate.profile import DeviceProfile

Mode = Literal["NOMINAL", "THROTTLED", "CRITICAL"]

PERIOD_S = 1.0
_HOLD_S, _DISTRUST_S = 5.0, 15.0  # a lost temperature: hold the duty, then halve it, then assume the worst
_LOST_DUTY = 0.5
_GUARD_MARGIN_CELSIUS = 2.0
_GUARD_RUN = 2
_RISE_TIME_S = 5.0  # fast, for the guard
_TREND_TIME_S = 15.0  # slow, for the brake: one step of a 1 °C sensor must not move the duty
_CRITICAL_COOL_CELSIUS, _CRITICAL_COOL_S = 5.0, 15.0
_NOMINAL_AFTER_S = 10.0
_THROTTLED_BELOW, _NOMINAL_FROM = 0.95, 0.98
_CAP_INTERVAL_S = 5.0
_FIRMWARE_SHARE = 0.95
_BUSY_PERCENT = 20.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is known of one device now; None is unknown, and so is any number that is not finite.

    ``temperature_celsius`` is the last believed one, ``temperature_age_s`` its age: both None if there never was one.
    ``other_duty`` is the tightest duty someone else sets, such as an operator.
    """

    temperature_celsius: float | None = None
    temperature_age_s: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    memory_pressure_percent: float | None = None
    utilization_percent: float | None = None
    frequency_mhz: float | None = None
    rated_frequency_mhz: float | None = None
    running: int | None = None
    other_duty: float | None = None


@dataclass(frozen=True, slots=True)
class LawState:
    """What the law remembers of a device between decisions; times are monotonic seconds."""

    at_s: float | None = None
    temperature_at_s: float | None = None
    mode: Mode = "NOMINAL"
    duty: float = 1.0
    integral: float = 1.0
    recent: tuple[float, ...] = ()
    filtered: float | None = None
    rise_per_s: float = 0.0
    trend_per_s: float = 0.0
    guard_hits: int = 0
    calm_since_s: float | None = None
    batch_cap: int | None = None
    batch_changed_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """Why limits are as they are: a stable code, and words with the numbers."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The limits for one device, the mode, and the causes. ``duty`` is the plain number behind the limit."""

    limits: Limits
    mode: Mode
    causes: tuple[Cause, ...]
    duty: float


def decide(profile: DeviceProfile, state: LawState, inputs: Inputs, now_s: float) -> tuple[LawState, Decision]:
    """One decision, about once a second. Never raises for any input; a hotter device is never granted more."""
    dt = PERIOD_S if state.at_s is None else min(3 * PERIOD_S, max(0.2 * PERIOD_S, now_s - state.at_s))
    state = replace(state, at_s=now_s)
    state, memory_causes = _memory(profile, state, inputs, now_s)
    temperature, age = _known(inputs.temperature_celsius), _known(inputs.temperature_age_s)
    if temperature is not None:
        state = replace(state, temperature_at_s=now_s)
    elif state.recent and state.temperature_at_s is not None:
        temperature, age = state.recent[-1], now_s - state.temperature_at_s
    if temperature is None:
        return _without_temperature(profile, state, memory_causes, now_s)
    state, causes = _temperature(profile, state, inputs, temperature, age or 0.0, dt, now_s)
    return _conclude(profile, state, causes + memory_causes, now_s)


def _temperature(
    profile: DeviceProfile,
    state: LawState,
    inputs: Inputs,
    temperature: float,
    age: float,
    dt: float,
    now_s: float,
) -> tuple[LawState, tuple[Cause, ...]]:
    heat, gains, low = profile.temperature, profile.gains, profile.levers.min_duty
    recent = (*state.recent, temperature)[-3:]
    middle = sorted(recent)[(len(recent) - 1) // 2 if len(recent) != 2 else 1]
    before = middle if state.filtered is None else state.filtered
    filtered = before + gains.filter * (middle - before)
    trend = _smoothed(state.trend_per_s, (filtered - before) / dt, dt, _TREND_TIME_S)
    previous = state.recent[-1] if state.recent else temperature
    rise = _smoothed(state.rise_per_s, (temperature - previous) / dt, dt, _RISE_TIME_S)
    error = heat.target_celsius - filtered

    raw = gains.kp * (error - gains.td_s * max(0.0, trend)) + state.integral
    duty = min(1.0, max(low, raw))
    duty = min(state.duty + gains.slew_up_per_s * dt, max(state.duty - gains.slew_down_per_s * dt, duty))
    other = _known(inputs.other_duty)
    held = min(duty, other) if other is not None and 0 < other <= 1 else duty
    # Back-calculation. The integral lives in [0, 1]: 1 is "no limit needed", so a cool device never winds it up.
    growth = gains.kp / gains.ti_s * error + (held - min(1.0, max(low, raw))) / gains.tt_s
    firmware = _firmware_cause(inputs)
    if firmware:
        growth = min(0.0, growth)
    integral = min(1.0, max(0.0, state.integral + dt * growth))

    causes: list[Cause] = [firmware] if firmware else []
    if duty < 1:
        text = f"{filtered:.1f} °C against a target of {heat.target_celsius:g}, trend {trend:+.2f} °C/s: "
        code = "TEMPERATURE_ABOVE_TARGET" if error < 0 else "TEMPERATURE_NEAR_TARGET"
        causes.append(Cause(code, text + f"duty {duty:.2f}"))
    predicted = temperature + gains.guard_horizon_s * max(0.0, rise)
    danger = heat.critical_celsius - _GUARD_MARGIN_CELSIUS
    hits = state.guard_hits + 1 if predicted >= danger else 0
    at_once = temperature >= heat.critical_celsius + _GUARD_MARGIN_CELSIUS
    mode, calm = state.mode, state.calm_since_s
    if hits >= _GUARD_RUN or at_once:
        mode, calm = "CRITICAL", None
        causes.insert(
            0,
            Cause("GUARD", f"{temperature:.1f} °C heads for {predicted:.1f}, critical is {heat.critical_celsius:g}"),
        )
    elif age > _DISTRUST_S:
        mode, calm = "CRITICAL", None
    if age > _DISTRUST_S:
        causes.insert(0, Cause("TEMPERATURE_LOST", f"no temperature for {age:.0f} s: the worst is assumed"))
    elif age > _HOLD_S:
        causes.insert(0, Cause("TEMPERATURE_LOST", f"no temperature for {age:.0f} s: duty at most {_LOST_DUTY:g}"))
        duty = min(duty, _LOST_DUTY)
        integral = min(integral, _LOST_DUTY)
    if mode == "CRITICAL":
        duty, integral = low, min(integral, low)
        cool = age <= _HOLD_S and temperature < heat.target_celsius - _CRITICAL_COOL_CELSIUS
        calm = (now_s if calm is None else calm) if cool else None
        if not cool and not causes:
            causes.append(Cause("COOLING_DOWN", f"{temperature:.1f} °C, waiting for {heat.target_celsius - 5:g}"))
        if calm is not None and now_s - calm >= _CRITICAL_COOL_S:
            mode, calm = "THROTTLED", None
        elif cool:
            causes = [Cause("COOLING_DOWN", f"{temperature:.1f} °C after a critical temperature")]
    state = replace(
        state,
        mode=mode,
        duty=duty,
        integral=integral,
        recent=recent,
        filtered=filtered,
        rise_per_s=rise,
        trend_per_s=trend,
        guard_hits=hits,
        calm_since_s=calm,
    )
    return state, tuple(causes)


def _firmware_cause(inputs: Inputs) -> Cause | None:
    now, rated = _known(inputs.frequency_mhz), _known(inputs.rated_frequency_mhz)
    busy = _known(inputs.utilization_percent)
    if now is None or rated is None or busy is None or busy < _BUSY_PERCENT or now >= _FIRMWARE_SHARE * rated:
        return None
    return Cause("FIRMWARE_THROTTLES", f"the firmware runs the chip at {now:.0f} of {rated:.0f} MHz")


def _memory(
    profile: DeviceProfile, state: LawState, inputs: Inputs, now_s: float
) -> tuple[LawState, tuple[Cause, ...]]:
    """Tighten the batch cap by a quarter each interval while memory is short; give it back when there is room again."""
    band, most = profile.memory, profile.levers.max_batch
    used, total = _known(inputs.memory_used_bytes), _known(inputs.memory_total_bytes)
    share = used / total if used is not None and total is not None and total > 0 else None
    pressure = _known(inputs.memory_pressure_percent)
    short = (share is not None and share >= band.high_share) or (
        pressure is not None and pressure >= band.high_pressure_percent
    )
    room = (share is None or share < band.low_share) and (pressure is None or pressure < band.high_pressure_percent / 2)
    cap = state.batch_cap
    due = state.batch_changed_s is None or now_s - state.batch_changed_s >= _CAP_INTERVAL_S
    if short and due:
        current = cap if cap is not None else min(most, max(1, inputs.running or most))
        cap = max(1, current * 3 // 4)
    elif room and due and cap is not None:
        cap = cap + max(1, cap // 4)
        cap = None if cap >= most else cap
    if cap != state.batch_cap or (short and due):
        state = replace(state, batch_cap=cap, batch_changed_s=now_s)
    if cap is None:
        return state, ()
    said = [f"memory {share:.0%} used, limit {band.high_share:.0%}"] if share is not None else []
    said += [f"tasks waited for memory {pressure:.0f} % of the time"] if pressure is not None else []
    return state, (Cause("MEMORY_SHORT" if short else "MEMORY_RECOVERING", f"{', '.join(said)}: batch at most {cap}"),)


def _without_temperature(
    profile: DeviceProfile, state: LawState, causes: tuple[Cause, ...], now_s: float
) -> tuple[LawState, Decision]:
    """A CPU without a thermometer makes no thermal claim; an NPU without one gets its safe limits."""
    if profile.kind != "npu":
        return _conclude(profile, state, causes, now_s)
    cause = Cause("TEMPERATURE_ABSENT", "no temperature has been read: safe limits hold")
    safe = profile.safe_limits
    if state.batch_cap is not None:
        safe = replace(safe, max_batch=min(state.batch_cap, safe.max_batch or state.batch_cap))
    duty = safe.duty if safe.duty is not None else 1.0
    # Limits grow from here once a temperature comes.
    state = replace(state, mode="THROTTLED", duty=duty, integral=duty, calm_since_s=None)
    return state, Decision(safe, "THROTTLED", (cause, *causes), duty)


def _conclude(
    profile: DeviceProfile, state: LawState, causes: tuple[Cause, ...], now_s: float
) -> tuple[LawState, Decision]:
    """Mode and limits from the duty and the batch cap the parts have chosen."""
    mode, calm, duty = state.mode, state.calm_since_s, round(state.duty, 3)
    if mode != "CRITICAL":
        if duty < _THROTTLED_BELOW or state.batch_cap is not None:
            mode, calm = "THROTTLED", None
        elif mode == "THROTTLED":
            calm = (now_s if calm is None else calm) if duty >= _NOMINAL_FROM else None
            if calm is not None and now_s - calm >= _NOMINAL_AFTER_S:
                mode, calm = "NOMINAL", None
    levers = profile.levers
    prefill: int | None = None
    if mode == "CRITICAL":
        prefill = 0
    elif duty < _THROTTLED_BELOW:
        prefill = max(levers.min_prefill_tokens, int(levers.max_prefill_tokens * duty))
    limits = Limits(duty=duty if duty < 1 else None, max_batch=state.batch_cap, max_prefill_tokens=prefill)
    return replace(state, mode=mode, calm_since_s=calm), Decision(limits, mode, causes, duty)


def _smoothed(before: float, new: float, dt: float, time_s: float) -> float:
    return before + dt / (time_s + dt) * (new - before)


def _known(value: float | None) -> float | None:
    return min(1e18, max(-1e18, value)) if value is not None and math.isfinite(value) else None
