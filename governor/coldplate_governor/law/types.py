"""What goes into the law and what comes out: plain values that a record can hold and a replay can read back."""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from coldplate.limits import Limits

PERIOD_S = 1.0

Mode = Literal["NOMINAL", "THROTTLED", "CRITICAL", "FALLBACK", "RECOVERING", "DRAINING", "SAFE"]
MODES: tuple[Mode, ...] = ("NOMINAL", "THROTTLED", "CRITICAL", "FALLBACK", "RECOVERING", "DRAINING", "SAFE")

Binding = Literal["none", "thermal", "power", "firmware", "memory", "queue", "sensor", "operator", "device"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is known of one device now; None is unknown, and so is any number that is not finite.

    ``temperature_celsius`` is the last believed one, ``temperature_age_s`` its age: both None if there never was one.
    ``power_watts`` and ``power_limit_watts`` are of the same thing, a chip or a card. ``waiting`` counts streams queued
    for the device, ``busy_share`` is the share of wall time it computed. ``engine_up`` False: no worker serves it.
    ``alternative`` False: nothing else could serve instead. ``throttle_cause`` is the firmware's own word for why it
    lowers the clock. ``other_duty`` is the tightest duty someone else sets, such as an operator. ``levers`` are the
    limits the device honours; none named means all. ``clock_shares`` are the shares of the rated clock that a frequency
    lever can set; none named means any.
    """

    temperature_celsius: float | None = None
    temperature_age_s: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    memory_pressure_percent: float | None = None
    utilization_percent: float | None = None
    frequency_mhz: float | None = None
    rated_frequency_mhz: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    throttle_cause: str | None = None
    firmware_limit_celsius: float | None = None
    reset_celsius: float | None = None
    running: int | None = None
    waiting: int | None = None
    queue_wait_s: float | None = None
    busy_share: float | None = None
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    decode_steps_per_s: float | None = None
    engine_up: bool | None = None
    alternative: bool | None = None
    draining: bool = False
    other_duty: float | None = None
    levers: tuple[str, ...] = ()
    frequency_levers: bool = False
    clock_shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    """Why limits are as they are: a stable code, and words with the numbers."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Terms:
    """The arithmetic behind a duty. Shares of duty, degrees Celsius and seconds; None where there is no such thing.

    ``raw`` is p + i + d + feed_forward, ``slewed`` the budget after slew and bounds, ``applied`` the duty that was
    decided. ``seconds_to_limit`` is how long the present trend takes to the firmware's cliff.
    """

    target: float | None = None
    filtered: float | None = None
    error: float | None = None
    p: float | None = None
    i: float | None = None
    d: float | None = None
    feed_forward: float | None = None
    raw: float | None = None
    slewed: float | None = None
    applied: float | None = None
    predicted_celsius: float | None = None
    rise_per_s: float | None = None
    seconds_to_limit: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What one device gets and why.

    ``duty`` is the plain number behind the limit; ``binding`` names the constraint that sets it; ``rungs`` are the
    steps of the ladder in use; ``clock_share`` is the wanted share of the rated clock, None for no wish; ``rule`` names
    what made the last change of mode; ``retry_after_s`` is when a closed device is expected to admit again.
    """

    limits: Limits
    mode: Mode
    causes: tuple[Cause, ...]
    duty: float
    binding: Binding = "none"
    terms: Terms = Terms()
    rungs: tuple[str, ...] = ()
    dwell_left_s: float = 0.0
    clock_share: float | None = None
    rule: str = "START"
    retry_after_s: float | None = None


_NUMBERS = tuple(field.name for field in fields(Inputs) if field.type == (float | None))
_COUNTS = ("running", "waiting")
_FLAGS = ("engine_up", "alternative")
_LARGEST = 1e15


def cleaned(raw: Inputs) -> Inputs:
    """``raw`` with all that is not what it should be unknown: NaN, infinities, texts, absurd sizes."""
    values: dict[str, Any] = {name: number(getattr(raw, name)) for name in _NUMBERS}
    for name in _COUNTS:
        count = number(getattr(raw, name))
        values[name] = None if count is None else int(max(0.0, count))
    for name in _FLAGS:
        flag = getattr(raw, name)
        values[name] = flag if isinstance(flag, bool) else None
    levers = raw.levers if isinstance(raw.levers, tuple) else ()
    return Inputs(
        **values,
        throttle_cause=raw.throttle_cause if isinstance(raw.throttle_cause, str) else None,
        draining=raw.draining is True,
        levers=tuple(name for name in levers if isinstance(name, str)),
        frequency_levers=raw.frequency_levers is True,
        clock_shares=_shares(raw.clock_shares),
    )


def _shares(raw: object) -> tuple[float, ...]:
    values = [number(value) for value in raw] if isinstance(raw, tuple) else []
    return tuple(value for value in values if value is not None and 0 < value <= 1)


def number(value: object) -> float | None:
    """``value`` as a finite float of sane size, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -_LARGEST <= value <= _LARGEST:  # NaN fails both
        return None
    return float(value) if math.isfinite(value) else None
