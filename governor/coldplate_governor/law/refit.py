"""Fitting a state to its profile: when the numbers change while it runs, nothing may go on by the old ones.

After trips were rewritten the kernel once left a cooling device throttled for good; here what the old numbers led to is
computed again, and only what was measured stays.
"""

import zlib
from dataclasses import replace

from coldplate.profile import DeviceProfile
from coldplate_governor.law.state import ClockState, DeviceState, FirmwareState, LawState, MemoryState, QueueState

_KNOWN: dict[int, tuple[DeviceProfile, str]] = {}


def refitted(profile: DeviceProfile, state: LawState) -> LawState:
    """``state`` as it is while the profile is the same; else without what only the old profile explains."""
    numbers = _numbers(profile)
    if state.profile == numbers:
        return state
    if not state.profile:
        return replace(state, profile=numbers)
    low = profile.levers.min_duty
    return replace(
        state,
        profile=numbers,
        budget=min(1.0, max(low, state.budget)),
        integral=min(1.0, max(-1.0, state.integral)),
        devices=tuple(_fresh(device) for device in state.devices),
    )


def _fresh(device: DeviceState) -> DeviceState:
    firmware = device.firmware
    return replace(
        device,
        heat=replace(device.heat, guard_hits=0),
        firmware=FirmwareState(throttling=firmware.throttling, events=firmware.events),
        memory=MemoryState(),
        queue=QueueState(),
        clock=ClockState(),
        mode=replace(device.mode, low_since_s=None, calm_since_s=None, critical_since_s=None),
    )


def _numbers(profile: DeviceProfile) -> str:
    """A short name for the numbers of a profile; made once for each."""
    known = _KNOWN.get(id(profile))
    if known is None or known[0] is not profile:
        if len(_KNOWN) > 64:
            _KNOWN.clear()
        parts = (profile.temperature, profile.safe_limits, profile.levers, profile.memory, profile.gains)
        known = _KNOWN[id(profile)] = (profile, f"{profile.name}-{zlib.crc32(repr(parts).encode()):08x}")
    return known[1]
