"""Who limits what: operator limits, the governor's leased limits, safe limits.

In force on a device is the tightest of them, field by field. Leases run on the injected monotonic clock.
"""

from dataclasses import dataclass
from typing import Any

from coldplate.clock import Clock
from coldplate.limits import NO_LIMITS, Limits, tightest

MIN_LEASE_S, MAX_LEASE_S = 1.0, 60.0


class LeaseRefused(Exception):
    """The call does not hold the lease and may not take it."""


class StaleCall(Exception):
    """An older epoch, or a sequence number that is not above the last."""


@dataclass(frozen=True, slots=True)
class Directive:
    """What a governor decided for one device. Readings, reasons and explanation are only shown, and opaque here.

    ``retry_after_s`` is when it expects to let the device take requests again; None if it does not say.
    """

    limits: Limits
    mode: str = ""
    reasons: tuple[Any, ...] = ()
    readings: Any = None
    retry_after_s: float | None = None
    explanation: Any = None


@dataclass(slots=True)
class _Lease:
    governor: str
    epoch: int
    seq: int
    expires: float


@dataclass(frozen=True, slots=True)
class GovernorView:
    """``state`` is "ungoverned", "governed" or "lost"."""

    state: str
    name: str
    epoch: int
    lease_left_s: float
    since_change_s: float


@dataclass(frozen=True, slots=True)
class InForce:
    limits: Limits
    binding: dict[str, str]  # field -> "operator", "governor" or "safe"


class LimitBook:
    """Limits of every device, by source."""

    def __init__(self, clock: Clock, safe: dict[str, Limits], required: frozenset[str]) -> None:
        """``safe``: the safe limits of each device; ``required``: the devices that hold them until a governor comes."""
        self._clock = clock
        self._safe = safe
        self._required = required
        self._operator: dict[str, Limits] = {}
        self._operator_since: dict[str, float] = {}
        self._directives: dict[str, Directive] = {}
        self._in_force: dict[tuple[str, ...], InForce] = {}  # emptied by every change
        self._lease: _Lease | None = None
        self._state = "ungoverned"
        self._state_since = clock.now()

    @property
    def devices(self) -> list[str]:
        return list(self._safe)

    def add_device(self, device: str, safe: Limits, required: bool) -> None:
        """Take in a device that a worker has only now reported."""
        self._in_force.clear()
        self._safe[device] = safe
        if required:
            self._required |= {device}

    def set_operator(self, device: str, limits: Limits) -> None:
        """Replace what the operator set on ``device``; no limits release it.

        An empty ``device`` is every device: what was set on single ones before goes, too.
        """
        self._in_force.clear()
        if not device:
            self._operator.clear()
        if limits:
            self._operator[device] = limits
            self._operator_since[device] = self._clock.now()
        else:
            self._operator.pop(device, None)

    def operator_age_s(self, device: str) -> float | None:
        """How long ago the newest limits by hand that count for ``device`` were set; None without any."""
        since = [self._operator_since[name] for name in ("", device) if name in self._operator]
        return self._clock.now() - max(since) if since else None

    def apply(self, governor: str, epoch: int, seq: int, ttl_s: float, directives: dict[str, Directive]) -> list[str]:
        """Renew or take the lease and replace the leased limits; returns the devices named that do not exist.

        Raises ValueError for a lease out of range, LeaseRefused while another governor holds it, StaleCall for an old
        call. A lease that has run out keeps out no epoch: a governor that starts again after its machine's clock was
        set back must not be locked out for good.
        """
        if not MIN_LEASE_S <= ttl_s <= MAX_LEASE_S:
            raise ValueError(f"ttl is {ttl_s:g} s: expected {MIN_LEASE_S:g} to {MAX_LEASE_S:g} s")
        now = self._clock.now()
        held = self._lease
        if held is not None and now < held.expires and held.governor != governor:
            left = held.expires - now
            raise LeaseRefused(f"governor {held.governor!r} holds the lease for another {left:.1f} s")
        if held is not None and held.governor == governor:
            if epoch < held.epoch and now < held.expires:
                raise StaleCall(
                    f"epoch {epoch} is older than {held.epoch}: a newer start of {governor!r} has taken over"
                )
            if epoch == held.epoch and seq <= held.seq:
                raise StaleCall(f"seq {seq} is not above {held.seq}")
        self._lease = _Lease(governor, epoch, seq, now + ttl_s)
        self._in_force.clear()
        self._directives = {name: directive for name, directive in directives.items() if name in self._safe}
        self._refresh_state()
        return [name for name in directives if name not in self._safe]

    def in_force(self, *devices: str) -> InForce:
        """What holds now on a device, or on several that work as one: of them all the tightest.

        Computed anew only after something has changed.
        """
        self._refresh_state()
        found = self._in_force.get(devices)
        if found is None:
            sources = [
                source
                for device in devices
                for source in (
                    ("operator", self._operator.get("", NO_LIMITS)),
                    ("operator", self._operator.get(device, NO_LIMITS)),
                    self._leased_or_safe(device),
                )
            ]
            found = self._in_force[devices] = InForce(*tightest(sources))
        return found

    def directive(self, device: str) -> Directive | None:
        """What the governor last said of the device, also after its lease has run out."""
        return self._directives.get(device)

    def retry_after_s(self, device: str) -> float | None:
        """When the governor that holds the lease expects the device to take requests again; None if it does not say."""
        self._refresh_state()
        directive = self._directives.get(device)
        return directive.retry_after_s if self._state == "governed" and directive is not None else None

    def governor(self) -> GovernorView:
        self._refresh_state()
        now = self._clock.now()
        lease = self._lease
        return GovernorView(
            state=self._state,
            name=lease.governor if lease else "",
            epoch=lease.epoch if lease else 0,
            lease_left_s=max(0.0, lease.expires - now) if lease else 0.0,
            since_change_s=now - self._state_since,
        )

    def _leased_or_safe(self, device: str) -> tuple[str, Limits]:
        directive = self._directives.get(device)
        if self._state == "governed" and directive is not None:
            return "governor", directive.limits
        if device in self._required or directive is not None:
            return "safe", self._safe.get(device, NO_LIMITS)
        return "governor", NO_LIMITS

    def _refresh_state(self) -> None:
        now = self._clock.now()
        if self._lease is None:
            state = "lost" if self._required else "ungoverned"
        else:
            state = "governed" if now < self._lease.expires else "lost"
        if state != self._state:
            self._in_force.clear()
            self._state, self._state_since = state, now
