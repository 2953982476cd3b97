"""Limits on a device: plain values, how they combine, and who binds.

In force is, field by field, the tightest of every source. This module knows neither where limits come from nor
who enforces them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

# Smaller is tighter for every field except these.
_LARGER_IS_TIGHTER = frozenset({"min_priority"})
_SHARES = frozenset({"duty", "cpu_share"})
_MINIMUM: Mapping[str, int] = {
    "max_batch": 1,
    "max_prefill_tokens": 0,
    "max_new_tokens": 1,
    "max_reasoning_tokens": 0,
    "max_context_tokens": 1,
    "max_encoder_tokens": 0,
    "min_priority": 1,
}
_MAXIMUM: Mapping[str, int] = {"min_priority": 3}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one device; ``None`` is no limit.

    ``duty`` and ``cpu_share`` are shares in (0, 1]; ``admit`` False closes the device to new requests; ``min_priority``
    is 1 (low) to 3 (high); ``max_prefill_tokens`` is per step, on top of the running decodes; the rest are counts.
    Raises ValueError naming the field and the value when one is out of range.
    """

    duty: float | None = None
    max_batch: int | None = None
    max_prefill_tokens: int | None = None
    max_new_tokens: int | None = None
    max_reasoning_tokens: int | None = None
    max_context_tokens: int | None = None
    max_encoder_tokens: int | None = None
    min_priority: int | None = None
    admit: bool | None = None
    cpu_share: float | None = None

    def __post_init__(self) -> None:
        for name, value in self.set_fields().items():
            check_limit(name, value)

    def set_fields(self) -> dict[str, Any]:
        """The fields that are limits, by name."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}

    def __bool__(self) -> bool:
        return bool(self.set_fields())


FIELD_NAMES: tuple[str, ...] = tuple(field.name for field in fields(Limits))
NO_LIMITS = Limits()


def check_limit(name: str, value: Any) -> None:
    """Raise ValueError when ``value`` is no possible limit for the field ``name``."""
    if name in _SHARES:
        if not (math.isfinite(value) and 0 < value <= 1):
            raise ValueError(f"{name} is {value}: expected a share above 0 and at most 1")
    elif name in _MINIMUM:
        low, high = _MINIMUM[name], _MAXIMUM.get(name, 2**31 - 1)
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}: expected {low} to {high}")


def tightest(sources: Iterable[tuple[str, Limits]]) -> tuple[Limits, dict[str, str]]:
    """Combine limits field by field.

    Returns the limits in force and, for each limited field, the name of the source that binds; among equals the first.
    """
    in_force: dict[str, Any] = {}
    binding: dict[str, str] = {}
    for source, limits in sources:
        for name, value in limits.set_fields().items():
            if name not in in_force or _tighter(name, value, in_force[name]):
                in_force[name] = value
                binding[name] = source
    return replace(NO_LIMITS, **in_force), binding


def _tighter(name: str, value: Any, than: Any) -> bool:
    return bool(value > than) if name in _LARGER_IS_TIGHTER else bool(value < than)
