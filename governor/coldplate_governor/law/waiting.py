"""The queue claim: when requests wait too long, the lowest class is shed, then answers are kept short.

The server bounds its queue by itself; these are the rungs for a wait that lasts although it does.
"""

from coldplate.profile import DeviceProfile
from coldplate_governor.law.state import QueueState
from coldplate_governor.law.types import Cause, Inputs

_CONFIRM_S = 10.0
_RELEASE_S = 30.0
SHED, SHORT_ANSWERS = 1, 2


def claim(profile: DeviceProfile, state: QueueState, inputs: Inputs, now_s: float) -> tuple[QueueState, Cause | None]:
    """One rung more each 10 s of a long wait, one less each 30 s of a short one."""
    wait, most = inputs.queue_wait_s, profile.levers.max_queue_wait_s
    long = wait is not None and wait > most
    short = wait is None or wait < most / 2
    if long and state.level < SHORT_ANSWERS:
        since = now_s if state.since_s is None else state.since_s
        if now_s - since >= _CONFIRM_S:
            state = QueueState(state.level + 1, now_s, now_s)
        elif since != state.since_s:
            state = QueueState(state.level, since, state.changed_s)
    elif short and state.level:
        if state.changed_s is None or now_s - state.changed_s >= _RELEASE_S:
            state = QueueState(state.level - 1, None, now_s)
    elif not long and state.since_s is not None:
        state = QueueState(state.level, None, state.changed_s)
    if not state.level:
        return state, None
    what = "the lowest class is refused" + (" and answers are kept short" if state.level == SHORT_ANSWERS else "")
    waited = "" if wait is None else f"requests wait {wait:.0f} s, the limit is {most:g} s: "
    return state, Cause("QUEUE_LONG", waited + what)
