"""Looking at one device: trust, thresholds, filters, guard and the claims that need no other device."""

from dataclasses import dataclass, replace

from coldplate.profile import DeviceProfile
from coldplate_governor.law import firmware, memory, power, thermal, waiting
from coldplate_governor.law.guard import Guard, watch
from coldplate_governor.law.state import (
    DeviceState,
    FirmwareState,
    HeatState,
    MemoryState,
    PowerState,
    QueueState,
    TrustState,
)
from coldplate_governor.law.thresholds import Thresholds, learned, thresholds
from coldplate_governor.law.trust import Trust, judge
from coldplate_governor.law.types import Cause, Inputs

_SURGE = 0.2  # of time: a busy share so far above the usual one is new work
_USUAL_S = 10.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of one device before the budget is shared. ``first`` marks its first temperature."""

    before: DeviceState
    inputs: Inputs
    trust_state: TrustState
    trust: Trust
    limits: Thresholds
    heat: HeatState
    guard: Guard | None
    firmware: FirmwareState
    clock_allowed: float | None
    power: PowerState
    power_duty: float | None
    full_watts: float | None
    memory: MemoryState
    queue: QueueState
    causes: tuple[Cause, ...]
    first: bool
    usual_busy: float

    @property
    def error(self) -> float:
        """Degrees below the target; only for a device with a temperature."""
        return self.limits.target - (self.heat.filtered or 0.0)


def look(
    profile: DeviceProfile, before: DeviceState, inputs: Inputs, woke_s: float | None, dt: float, now_s: float
) -> Seen:
    """Take one device's inputs into its filters."""
    gains, low = profile.gains, profile.levers.min_duty
    trust_state, trust = judge(before.trust, inputs, now_s, woke_s)
    celsius = trust.celsius
    told, limits, causes = thresholds(profile, before.firmware, inputs, before.trust.celsius)
    heat, guard = before.heat, None
    if celsius is not None:
        heat = thermal.filtered(heat, celsius, now_s - trust.age_s, dt, gains.filter)
        surging = inputs.busy_share is not None and inputs.busy_share > before.usual_busy + _SURGE
        guard = watch(heat, limits, gains.guard_horizon_s, surging)
        heat = replace_hits(heat, guard.hits)
    allowed, throttles = firmware.observed(inputs, before.clock.share)
    begins = throttles is not None and not told.throttling and celsius is not None
    at = celsius if begins and firmware.learns_from(inputs, celsius or 0.0, limits.target) else None
    told = firmware.counted(told, throttles is not None, learned(profile, told, at, dt))
    power_state = power.fit(before.power, inputs, before.duty, dt)
    power_state, power_duty, full_watts = power.claim(
        power_state, inputs, before.duty, low, profile.gains.slew_up_per_s * dt
    )
    memory_state, memory_cause = memory.claim(profile, before.memory, inputs, now_s)
    queue_state, queue_cause = waiting.claim(profile, before.queue, inputs, now_s)
    more = tuple(cause for cause in (throttles, memory_cause, queue_cause) if cause is not None)
    return Seen(
        before,
        inputs,
        trust_state,
        trust,
        limits,
        heat,
        guard,
        told,
        allowed,
        power_state,
        power_duty,
        full_watts,
        memory_state,
        queue_state,
        more + causes,
        celsius is not None and before.trust.celsius is None,
        usual_busy(before.usual_busy, inputs.busy_share, dt),
    )


def usual_busy(before: float, busy_share: float | None, dt: float) -> float:
    """The busy share smoothed; unknown leaves it."""
    return before if busy_share is None else before + dt / (_USUAL_S + dt) * (busy_share - before)


def replace_hits(heat: HeatState, hits: int) -> HeatState:
    """``heat`` with the guard's count."""
    return heat if hits == heat.guard_hits else replace(heat, guard_hits=hits)
