"""Virtual token counters: how much of a lane's service each tenant has had.

After Sheng et al., "Fairness in Serving Large Language Models" (2024): the waiting tenant with the smallest counter
goes next, and one that comes back is lifted to those who waited, so that being away saves up nothing. Of two tenants
that both wait all the time, neither gets further ahead than twice ``max(prompt_weight * longest prompt, answer_weight *
tokens in flight)``.

Beyond the paper the level that newcomers are lifted to is also a virtual time: it moves with the service given, divided
among who waits. An endless row of new tenants can so pass nobody for ever.
"""


class FairShare:
    """The counters of one lane. A tenant is present while any stream of it waits or runs."""

    def __init__(self, max_absent: int) -> None:
        self._max_absent = max_absent
        self._counters: dict[str, float] = {}  # in the order in which tenants went, as far as they are absent
        self._waiting: dict[str, int] = {}
        self._present: dict[str, int] = {}
        self._level = 0.0
        self._top = 0.0

    def __len__(self) -> int:
        """Tenants remembered."""
        return len(self._counters)

    @property
    def waiting(self) -> int:
        """Tenants that wait."""
        return len(self._waiting)

    def counter(self, tenant: str) -> float:
        """The weighted tokens it has had; of an unknown tenant what it would begin with."""
        return self._counters.get(tenant, self._lift())

    def join(self, tenant: str) -> None:
        """A stream of the tenant waits now."""
        if tenant not in self._waiting:
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), self._lift())
            self._top = max(self._top, self._counters[tenant])
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1
        self._present[tenant] = self._present.get(tenant, 0) + 1

    def stop_waiting(self, tenant: str) -> None:
        """One of its streams waits no longer: it starts, or it goes."""
        _less(self._waiting, tenant)
        if not self._waiting:
            self._level = max(self._level, self._top)  # nobody was denied anything: no debt is kept

    def leave(self, tenant: str) -> None:
        """One of its streams, which no longer waits, is over."""
        if not _less(self._present, tenant):
            return
        counter = self._counters.pop(tenant)
        if counter > self._level:  # who is below is lifted to the level anyway
            self._counters[tenant] = counter
            self._forget()

    def charge(self, tenant: str, cost: float) -> None:
        """Count service to a tenant that is present; a negative cost gives back what was not needed."""
        counter = self._counters[tenant] = self._counters[tenant] + cost
        self._top = max(self._top, counter)
        if self._waiting:
            self._level += cost / len(self._waiting)
        else:
            self._level = max(self._level, counter)

    def _lift(self) -> float:
        if not self._waiting:
            return self._level
        return max(self._level, min(self._counters[tenant] for tenant in self._waiting))

    def _forget(self) -> None:
        absent = len(self._counters) - len(self._present)
        for tenant in list(self._counters) if absent > self._max_absent else ():
            if absent <= self._max_absent:
                break
            if tenant not in self._present:
                del self._counters[tenant]
                absent -= 1


def _less(counts: dict[str, int], tenant: str) -> bool:
    """Take one off; tells whether it was the last."""
    counts[tenant] -= 1
    if counts[tenant] > 0:
        return False
    del counts[tenant]
    return True
