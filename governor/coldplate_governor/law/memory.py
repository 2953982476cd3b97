"""The memory claim: a batch cap that tightens by a quarter while memory is short, then caps on answers and contexts.

Cuts stop when they free nothing: a pool that was allocated once, or another process, does not shrink with the batch,
and a cap that ratchets down without effect would only starve the service.
"""

from coldplate.profile import DeviceProfile
from coldplate_governor.law.state import MemoryState
from coldplate_governor.law.types import Cause, Inputs

_INTERVAL_S = 5.0
_RELEASE_S = 10.0
_SHARE_FREED = 0.005
_USELESS_CUTS = 2
PREFILL, BATCH, ANSWERS, CONTEXTS = 1, 2, 3, 4  # rungs, in the order they are used


def claim(profile: DeviceProfile, state: MemoryState, inputs: Inputs, now_s: float) -> tuple[MemoryState, Cause | None]:
    """One step of the memory ladder: one rung down each 5 s while memory is short, one up each 10 s with room."""
    band, most = profile.memory, profile.levers.max_batch
    used, total, pressure = inputs.memory_used_bytes, inputs.memory_total_bytes, inputs.memory_pressure_percent
    share = used / total if used is not None and total is not None and total > 0 and used >= 0 else None
    if share is not None and share > 1:
        share = None  # no such thing: claims nothing
    stalled = pressure is not None and pressure >= band.high_pressure_percent
    short = stalled or (share is not None and share >= band.high_share)
    room = (share is None or share < band.low_share) and (pressure is None or pressure < band.high_pressure_percent / 2)
    since = None if state.changed_s is None else now_s - state.changed_s
    if short and (since is None or since >= _INTERVAL_S):
        state = _tightened(state, most, inputs.running, share, stalled, now_s)
    elif room and state.level and (since is None or since >= _RELEASE_S):
        state = _released(state, most, now_s)
    if not state.level:
        return state, None
    return state, _cause(state, short, share, pressure, band.high_share)


def _tightened(
    state: MemoryState, most: int, running: int | None, share: float | None, stalled: bool, now_s: float
) -> MemoryState:
    useless = state.useless_cuts
    if share is not None and state.share_at_cut is not None and not stalled:
        useless = useless + 1 if share > state.share_at_cut - _SHARE_FREED else 0
    if useless >= _USELESS_CUTS:
        return MemoryState(state.cap, state.level, now_s, share, useless)
    current = min(most, max(1, running or most))
    if state.cap is not None:
        current = min(state.cap, most)
    return MemoryState(max(1, current * 3 // 4), min(CONTEXTS, state.level + 1), now_s, share, useless)


def _released(state: MemoryState, most: int, now_s: float) -> MemoryState:
    """In reverse order: contexts and answers first, then the batch by a quarter at a time, then all."""
    if state.level > BATCH:
        return MemoryState(state.cap, state.level - 1, now_s)
    cap = None if state.cap is None else state.cap + max(1, state.cap // 4)
    if cap is None or cap >= most:
        return MemoryState(None, 0, now_s)
    return MemoryState(cap, state.level, now_s)


def _cause(state: MemoryState, short: bool, share: float | None, pressure: float | None, high: float) -> Cause:
    said = [f"memory {share:.0%} used, limit {high:.0%}"] if share is not None else []
    if pressure is not None:
        said.append(f"tasks waited for memory {pressure:.0f} % of the time")
    text = f"{', '.join(said) or 'memory not told'}: batch at most {state.cap}"
    if short and state.useless_cuts >= _USELESS_CUTS:
        return Cause("MEMORY_HELD", text + "; fewer streams free nothing, so something else holds it")
    return Cause("MEMORY_SHORT" if short else "MEMORY_RECOVERING", text)
