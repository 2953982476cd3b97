"""The mode machine of one device (governor.md B7): down at once, up only after a dwell, with every constraint clear.

A relapse doubles what it cost: a device that keeps failing is tried less and less often, and the count fades only after
half an hour without trouble. RECOVERING is half-open: one stream, then two, four and so on, each stage a counted number
of canaries.
"""

import zlib
from dataclasses import dataclass, replace

from coldplate_governor.law.state import ModeState
from coldplate_governor.law.thresholds import Thresholds
from coldplate_governor.law.trust import Trust
from coldplate_governor.law.types import Binding, Mode

THROTTLED_BELOW, NOMINAL_FROM = 0.95, 0.98
_LOW_FOR_S = 3.0
_NOMINAL_COOL_CELSIUS, _NOMINAL_AFTER_S = 3.0, 30.0
_THROTTLED_DWELL_S, _CRITICAL_DWELL_S, _SAFE_DWELL_S = 10.0, 10.0, 10.0
_MOST_CRITICAL_DWELL_S = 300.0
COOL_CELSIUS, COOL_FOR_S = 5.0, 15.0
_STILL_RISING_AFTER_S, _STILL_RISING_PER_S = 20.0, 0.05
_FROM_NOMINAL_DWELL_S = 60.0  # back within a minute would be a flap
_FALLBACK_DWELL_S, _MOST_FALLBACK_DWELL_S, _JITTER = 60.0, 900.0, 0.15
_FIRST_ENGINE_LOSS_S = 10.0  # a worker that crashed once is back by itself: its canaries test it, not a minute's wait
_CLEAN_S = 1800.0
_STAGE_WORK_S, _STAGE_IDLE_S, _FULL_SHARE_S = 10.0, 30.0, 60.0
# A box too warm to cool to 5 °C below target comes back all the same, once it is below target for a while.
_WARM_AFTER_S, _WARM_FOR_S = 300.0, 60.0

SEVERE: frozenset[Mode] = frozenset({"CRITICAL", "FALLBACK"})


@dataclass(frozen=True, slots=True)
class Facts:
    """What the machine goes by.

    ``duty`` is the tightest claim on it, ``capped`` whether any other limit is set, ``woke`` whether a long gap has
    just ended, ``takeover`` whether the first temperature is above the target.
    """

    npu: bool
    trust: Trust
    limits: Thresholds
    trend_per_s: float
    guard: bool
    duty: float
    capped: bool
    engine_up: bool | None
    alternative: bool | None
    draining: bool
    running: int | None
    woke: bool
    takeover: bool
    stages: int


def step(state: ModeState, facts: Facts, name: str, dt: float, now_s: float) -> ModeState:
    """The next state; at most one change of mode per call."""
    if facts.engine_up and not state.engine_seen:
        state = replace(state, engine_seen=True)
    if state.since_s is None:
        state = replace(state, since_s=now_s)
    severe = _severe(state, facts, name, now_s)
    if severe is not None:
        return severe
    if facts.woke:
        return _enter(state, "RECOVERING", "GAP", "device", now_s)
    if facts.takeover and state.mode in ("NOMINAL", "THROTTLED", "SAFE"):
        return _enter(state, "SAFE", "TAKEOVER", "thermal", now_s, _SAFE_DWELL_S)
    if facts.draining and state.mode not in SEVERE:
        return state if state.mode == "DRAINING" else _enter(state, "DRAINING", "DRAIN", "operator", now_s)
    match state.mode:
        case "CRITICAL" | "FALLBACK":
            return _cooling(state, facts, now_s)
        case "RECOVERING":
            return _recovering(state, facts, dt, now_s)
        case "SAFE":
            return _safe(state, facts, now_s)
        case "DRAINING":
            return _enter(state, "THROTTLED", "DRAIN_OVER", "none", now_s, _THROTTLED_DWELL_S)
        case _:
            return _plain(state, facts, now_s)


def dwell_left_s(state: ModeState, now_s: float) -> float:
    """Seconds until the mode may be left for a better one, as far as time alone decides."""
    if state.mode == "RECOVERING":
        since = state.stage_since_s if state.stage_since_s is not None else now_s
        return max(0.0, since + _STAGE_WORK_S - now_s)
    return max(0.0, state.hold_s - _spent_s(state, now_s))


def release_celsius(state: ModeState, limits: Thresholds) -> float:
    """What a device in CRITICAL or FALLBACK has to be below to be tried again."""
    return limits.target if state.binding == "device" else limits.target - COOL_CELSIUS


def _severe(state: ModeState, facts: Facts, name: str, now_s: float) -> ModeState | None:
    """What goes down at once, or None."""
    level, mode = facts.trust.level, state.mode
    if facts.npu and state.engine_seen and facts.engine_up is False:
        return state if mode == "FALLBACK" else _fall(state, "FALLBACK", "ENGINE_LOST", "device", facts, name, now_s)
    if mode == "FALLBACK":
        return None
    if facts.guard:
        if mode == "RECOVERING" and state.came_from == "FALLBACK":
            return _fall(state, "FALLBACK", "RELAPSE", "thermal", facts, name, now_s)
        if mode != "CRITICAL":
            return _fall(state, "CRITICAL", "GUARD", "thermal", facts, name, now_s)
        if state.binding != "thermal":
            return replace(state, binding="thermal", rule="GUARD")
    if mode == "CRITICAL" and (rule := _helpless(state, facts, now_s)):
        return _fall(state, "FALLBACK", rule, "thermal", facts, name, now_s)
    if level == "absent" and facts.npu and mode != "CRITICAL":
        return state if mode == "SAFE" else _enter(state, "SAFE", "SENSOR_ABSENT", "sensor", now_s)
    if level == "lost" or (level == "floor" and not facts.npu):
        return _blind(state, facts, name, now_s)
    if level == "floor" and mode not in ("CRITICAL", "SAFE"):
        return _fall(state, "CRITICAL", "SENSOR_LOST", "sensor", facts, name, now_s)
    return None


def _blind(state: ModeState, facts: Facts, name: str, now_s: float) -> ModeState | None:
    """The temperature is gone for good. Where something else can serve it does; else the safe limits keep serving."""
    if state.mode == "CRITICAL" and state.binding == "thermal" and _spent_s(state, now_s) < _WARM_AFTER_S:
        return None  # it was too hot when last seen
    if facts.npu and facts.alternative is not False:
        return _fall(state, "FALLBACK", "SENSOR_LOST", "sensor", facts, name, now_s)
    return state if state.mode == "SAFE" else _enter(state, "SAFE", "SENSOR_LOST", "sensor", now_s, _SAFE_DWELL_S)


def _helpless(state: ModeState, facts: Facts, now_s: float) -> str | None:
    """CRITICAL that does not help, 20 s on: the rule by which the device is given up for a while."""
    celsius = facts.trust.celsius
    if not facts.npu or facts.woke or celsius is None or _spent_s(state, now_s) < _STILL_RISING_AFTER_S:
        return None
    if facts.trend_per_s > _STILL_RISING_PER_S and celsius > (
        celsius if state.entry_celsius is None else state.entry_celsius
    ):
        return "STILL_RISING"
    since = state.critical_since_s if celsius >= facts.limits.critical else None
    return "STAYS_CRITICAL" if since is not None and now_s - since >= _STILL_RISING_AFTER_S else None


def _cooling(state: ModeState, facts: Facts, now_s: float) -> ModeState:
    """CRITICAL and FALLBACK: out once cool, trusted, and the dwell is over."""
    celsius, trust, limits = facts.trust.celsius, facts.trust, facts.limits
    trusted = trust.level in ("fresh", "held") and not trust.doubted
    cool = trust.level == "absent" or (trusted and celsius is not None and celsius < release_celsius(state, limits))
    below = trusted and celsius is not None and celsius < limits.target
    hot = celsius is not None and celsius >= limits.critical
    calm = _since(state.calm_since_s, cool, now_s)
    warm = _since(state.below_target_since_s, below, now_s)
    critical = _since(state.critical_since_s, hot, now_s)
    if (calm, warm, critical) != (state.calm_since_s, state.below_target_since_s, state.critical_since_s):
        state = replace(state, calm_since_s=calm, below_target_since_s=warm, critical_since_s=critical)
    spent = _spent_s(state, now_s)
    cooled = calm is not None and now_s - calm >= (0.0 if state.binding == "device" else COOL_FOR_S)
    warm_enough = warm is not None and now_s - warm >= _WARM_FOR_S and spent >= _WARM_AFTER_S
    if spent < state.hold_s or not (cooled or warm_enough):
        return state
    return _enter(state, "RECOVERING", "BACKOFF_OVER" if state.mode == "FALLBACK" else "COOLED", "device", now_s)


def _spent_s(state: ModeState, now_s: float) -> float:
    """Seconds in the present mode."""
    return 0.0 if state.since_s is None else now_s - state.since_s


def _since(before: float | None, holds: bool, now_s: float) -> float | None:
    """Since when something has held without a break."""
    if not holds:
        return None
    return now_s if before is None else before


def _recovering(state: ModeState, facts: Facts, dt: float, now_s: float) -> ModeState:
    worked = state.worked_s + (dt if facts.running is None or facts.running > 0 else 0.0)
    since = now_s if state.stage_since_s is None else state.stage_since_s
    celsius = facts.trust.celsius
    clean = facts.trust.level in ("fresh", "absent") and (celsius is None or celsius < facts.limits.target + 1)
    spent = now_s - since
    if state.stage >= facts.stages:
        if clean and spent >= _FULL_SHARE_S:
            low = facts.duty < THROTTLED_BELOW or facts.capped
            mode: Mode = "THROTTLED" if low else "NOMINAL"
            return _enter(state, mode, "CANARIES_PASSED", "none", now_s, _THROTTLED_DWELL_S if low else 0.0)
        return replace(state, worked_s=worked, stage_since_s=since)
    if clean and spent >= _STAGE_WORK_S and (worked >= _STAGE_WORK_S or spent >= _STAGE_IDLE_S):
        return replace(state, stage=state.stage + 1, stage_since_s=now_s, worked_s=0.0)
    return replace(state, worked_s=worked, stage_since_s=since)


def _safe(state: ModeState, facts: Facts, now_s: float) -> ModeState:
    if facts.trust.level == "absent" and facts.npu:
        return state
    spent, celsius = _spent_s(state, now_s), facts.trust.celsius
    hot = state.rule == "TAKEOVER" and celsius is not None and celsius >= facts.limits.target + 1
    if facts.trust.level not in ("fresh", "absent") or spent < state.hold_s or (hot and spent < _WARM_FOR_S):
        return state
    return _enter(
        state,
        "THROTTLED",
        "TAKEN_OVER" if state.rule == "TAKEOVER" else "SENSOR_BACK",
        "none",
        now_s,
        _THROTTLED_DWELL_S,
    )


def _plain(state: ModeState, facts: Facts, now_s: float) -> ModeState:
    """NOMINAL and THROTTLED."""
    if state.mode == "NOMINAL":
        low = facts.duty < THROTTLED_BELOW
        since = _since(state.low_since_s, low, now_s)
        if facts.capped or (since is not None and now_s - since >= _LOW_FOR_S):
            return _enter(
                state, "THROTTLED", "CAPPED" if facts.capped else "DUTY_LOW", "none", now_s, _FROM_NOMINAL_DWELL_S
            )
        return state if since == state.low_since_s else replace(state, low_since_s=since)
    celsius = facts.trust.celsius
    cool = celsius is None or celsius < facts.limits.target - _NOMINAL_COOL_CELSIUS
    calm = facts.duty >= NOMINAL_FROM and not facts.capped and cool and facts.trust.level in ("fresh", "held", "absent")
    since = _since(state.calm_since_s, calm, now_s)
    held = _spent_s(state, now_s) >= state.hold_s
    if held and since is not None and now_s - since >= _NOMINAL_AFTER_S:
        return _enter(state, "NOMINAL", "CALM", "none", now_s)
    return state if since == state.calm_since_s else replace(state, calm_since_s=since)


def _fall(
    state: ModeState, mode: Mode, rule: str, binding: Binding, facts: Facts, name: str, now_s: float
) -> ModeState:
    """Enter CRITICAL or FALLBACK, counting relapses."""
    relapses, trouble = state.relapses, state.trouble_s
    if state.mode not in SEVERE:
        recent = state.mode == "RECOVERING" or (trouble is not None and now_s - trouble < _CLEAN_S)
        relapses = relapses + 1 if trouble is not None and recent else 0
    if mode == "CRITICAL":
        hold = min(_MOST_CRITICAL_DWELL_S, _CRITICAL_DWELL_S * 2.0 ** min(relapses, 10))
    elif rule == "ENGINE_LOST" and relapses == 0:
        hold = _FIRST_ENGINE_LOSS_S
    else:
        hold = min(_MOST_FALLBACK_DWELL_S, _FALLBACK_DWELL_S * 2.0 ** min(relapses, 10)) * _jitter(name, relapses)
    entered = _enter(state, mode, rule, binding, now_s, hold)
    return replace(entered, relapses=relapses, trouble_s=now_s, entry_celsius=facts.trust.celsius)


def _enter(state: ModeState, mode: Mode, rule: str, binding: Binding, now_s: float, hold_s: float = 0.0) -> ModeState:
    trouble = now_s if state.mode in SEVERE else state.trouble_s
    return ModeState(
        mode=mode,
        since_s=now_s,
        hold_s=hold_s,
        came_from=state.mode if state.mode != mode else state.came_from,
        binding=binding,
        rule=rule,
        relapses=state.relapses,
        trouble_s=trouble,
        stage_since_s=now_s if mode == "RECOVERING" else None,
        engine_seen=state.engine_seen,
    )


def _jitter(name: str, relapses: int) -> float:
    """1 ± 15 %, the same for the same device and count: devices that failed together are not tried together."""
    seed = zlib.crc32(f"{name} {relapses}".encode()) / 0xFFFFFFFF
    return 1 + _JITTER * (2 * seed - 1)
