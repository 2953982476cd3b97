"""The decision for one device: the tightest claim, the mode it leads to, and the limits and words for both."""

from dataclasses import dataclass

from coldplate.profile import DeviceProfile
from coldplate_governor.law import frequency, modes, split
from coldplate_governor.law.closed import retry_after_s
from coldplate_governor.law.ladder import Needs, ladder_of, stages
from coldplate_governor.law.look import Seen
from coldplate_governor.law.state import DeviceState, ModeState
from coldplate_governor.law.thermal import Budget
from coldplate_governor.law.trust import HALVED_DUTY
from coldplate_governor.law.types import Binding, Decision, Terms
from coldplate_governor.law.words import causes_of

_SLOW_TREND_PER_S = 0.01


@dataclass(frozen=True, slots=True)
class Concluded:
    """The next state and the decision of one device; ``held`` is the duty left of its share by all caps."""

    state: DeviceState
    decision: Decision
    held: float


@dataclass(frozen=True, slots=True)
class Round:
    """What is common to the devices of one decision. ``rise`` is the most a duty may rise by."""

    budget: Budget | None
    rise: float
    woke: bool
    dt: float
    now_s: float


def conclude(profile: DeviceProfile, seen: Seen, share: float, common: Round) -> Concluded:
    """Fuse the claims on one device whose share of the budget is ``share``."""
    before, inputs, levers = seen.before, seen.inputs, profile.levers
    claimed, binding = _tightest(profile, seen, share, common.rise)
    mode = modes.step(before.mode, _facts(profile, seen, claimed, common.woke), before.name, common.dt, common.now_s)
    duty, binding = _by_mode(profile, mode, claimed, binding)
    least = levers.critical_duty if mode.mode in modes.SEVERE else levers.min_duty
    duty = round(min(1.0, max(least, duty)), 3)
    steps = inputs.clock_shares if inputs.frequency_levers else None
    below = seen.error if seen.heat.filtered is not None else 0.0
    clock = frequency.wish(before.clock, steps, duty, below, mode.mode in modes.SEVERE, common.now_s)
    clock_share = clock.share if inputs.frequency_levers else None
    other = inputs.other_duty if inputs.other_duty is not None and 0 < inputs.other_duty <= 1 else 1.0
    needs = Needs(
        mode.mode,
        duty,
        seen.memory.cap,
        seen.memory.level,
        seen.queue.level,
        mode.stage,
        clock_share is not None and clock_share < 1,
        inputs.alternative is not False,
        inputs.draining,
        inputs.levers,
    )
    limits, rungs = ladder_of(profile).build(needs)
    state = DeviceState(
        before.name,
        seen.trust_state,
        seen.heat,
        seen.firmware,
        seen.power,
        seen.memory,
        seen.queue,
        clock,
        mode,
        split.demand(before.demand, inputs.busy_share, inputs.waiting, before.duty, common.dt),
        duty,
        seen.usual_busy,
    )
    binding = _binding(seen, mode, duty, binding, other)
    decision = Decision(
        limits=limits,
        mode=mode.mode,
        causes=causes_of(profile, seen, mode, duty, binding, common.now_s),
        duty=duty,
        binding=binding,
        terms=_terms(seen, common.budget, duty),
        rungs=rungs,
        dwell_left_s=round(modes.dwell_left_s(mode, common.now_s), 3),
        clock_share=clock_share,
        rule=mode.rule,
        retry_after_s=retry_after_s(seen, mode, common.now_s),
    )
    return Concluded(state, decision, min(duty, other))


def _tightest(profile: DeviceProfile, seen: Seen, share: float, rise: float) -> tuple[float, Binding]:
    """The tightest claim on the duty, before the mode has its say."""
    claims: list[tuple[float, Binding]] = [(share, "thermal")]
    if seen.power_duty is not None:
        claims.append((seen.power_duty, "power"))
    level = seen.trust.level
    if level == "halved":
        claims.append((HALVED_DUTY, "sensor"))
    elif level in ("floor", "lost"):
        claims.append((profile.levers.min_duty, "sensor"))
    duty, binding = min(claims)
    if duty > seen.before.duty + rise:
        before = seen.before.mode.binding
        duty, binding = seen.before.duty + rise, "thermal" if before == "none" else before
    return round(duty, 3), binding


def _facts(profile: DeviceProfile, seen: Seen, duty: float, woke: bool) -> modes.Facts:
    inputs = seen.inputs
    return modes.Facts(
        npu=profile.kind == "npu",
        trust=seen.trust,
        limits=seen.limits,
        trend_per_s=seen.heat.trend_per_s,
        guard=seen.guard is not None and seen.guard.fired is not None,
        duty=duty,
        capped=seen.memory.level > 0 or seen.queue.level > 0 or (seen.first and duty < modes.THROTTLED_BELOW),
        engine_up=inputs.engine_up,
        alternative=inputs.alternative,
        draining=inputs.draining,
        running=inputs.running,
        woke=woke,
        takeover=seen.first and seen.error < 0,
        stages=stages(profile.levers),
    )


def _by_mode(profile: DeviceProfile, mode: ModeState, duty: float, binding: Binding) -> tuple[float, Binding]:
    """What the mode leaves of a duty."""
    safe = safe_duty(profile)
    match mode.mode:
        case "CRITICAL":
            floor = profile.levers.min_duty if mode.binding == "sensor" else profile.levers.critical_duty
            return floor, mode.binding
        case "FALLBACK":
            return profile.levers.critical_duty, mode.binding
        case "SAFE":
            return (duty, binding) if duty < safe else (safe, "sensor")
        case "RECOVERING":
            most = safe + (1 - safe) * mode.stage / stages(profile.levers)
            return (duty, binding) if duty <= most else (most, "device")
        case _:
            return duty, binding


def _binding(seen: Seen, mode: ModeState, duty: float, binding: Binding, other: float) -> Binding:
    """Which constraint sets the pace now."""
    if mode.mode in modes.SEVERE:
        return mode.binding
    if other < duty:
        return "operator"
    if seen.clock_allowed is not None and seen.clock_allowed < duty:
        return "firmware"
    if duty < 1:
        return binding
    if mode.mode == "RECOVERING":
        return "device"
    if mode.mode == "DRAINING":
        return "operator"
    if seen.memory.level:
        return "memory"
    return "queue" if seen.queue.level else "none"


def _terms(seen: Seen, budget: Budget | None, duty: float) -> Terms:
    guard, heat = seen.guard, seen.heat
    if guard is None or heat.filtered is None:
        return Terms(applied=duty)
    left = None
    if heat.trend_per_s > _SLOW_TREND_PER_S:
        left = max(0.0, (seen.limits.cliff - heat.filtered) / heat.trend_per_s)
    shared = (None,) * 5 if budget is None else (budget.p, budget.i, budget.d, budget.raw, budget.slewed)
    p, i, d, raw, slewed = shared
    return Terms(
        target=seen.limits.target,
        filtered=heat.filtered,
        error=seen.error,
        p=p,
        i=i,
        d=d,
        feed_forward=0.0,
        raw=raw,
        slewed=slewed,
        applied=duty,
        predicted_celsius=guard.predicted_celsius,
        rise_per_s=guard.rise_per_s,
        seconds_to_limit=left,
    )


def safe_duty(profile: DeviceProfile) -> float:
    """The duty of the profile's safe limits."""
    return profile.safe_limits.duty if profile.safe_limits.duty is not None else 1.0
