"""One heatsink's budget divided among its devices by demand, as the kernel's power allocator divides power.

grant_i = B w_i req_i / sum(w req), at most 1; the surplus goes to the others by their headroom
"""

from collections.abc import Mapping

_FULL_ABOVE = 0.9  # of its duty: a device that uses so much of it wants all
_HEADROOM, _LEAST = 1.25, 0.1
_FADE_S = 10.0
_NOTHING = 1e-9


def demand(before: float, busy_share: float | None, waiting: int | None, duty: float, dt: float) -> float:
    """What a device could use, 0.1 to 1: everything while it uses what it has or streams wait, else above its use.

    Unknown is everything. It rises at once and fades slowly.
    """
    if busy_share is None or (waiting or 0) > 0 or busy_share >= _FULL_ABOVE * duty:
        return 1.0
    wanted = min(1.0, max(_LEAST, busy_share * _HEADROOM + _LEAST))
    return max(wanted, before + dt / (_FADE_S + dt) * (wanted - before))


def split(total: float, requests: Mapping[str, float]) -> dict[str, float]:
    """Divide ``total`` (sum of duties) by the requests, each grant at most 1. A request of 0 gets nothing."""
    grants = dict.fromkeys(requests, 0.0)
    wanting = {name: share for name, share in requests.items() if share > _NOTHING}
    left = total
    asked = sum(wanting.values())
    if not asked:
        return grants
    for name, share in wanting.items():
        grants[name] = min(1.0, total * share / asked)
    left = total - sum(grants.values())
    for _ in wanting:
        room = {name: 1.0 - grants[name] for name in wanting if grants[name] < 1.0}
        space = sum(room.values())
        if left <= 1e-9 or space <= 1e-9:
            break
        for name, free in room.items():
            grants[name] = min(1.0, grants[name] + left * free / space)
        left = total - sum(grants.values())
    return grants
