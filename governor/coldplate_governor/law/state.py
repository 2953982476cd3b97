"""What the law remembers of one heatsink and of each device on it. Times are monotonic seconds."""

from dataclasses import dataclass

from coldplate_governor.law.types import Binding, Mode


@dataclass(frozen=True, slots=True)
class TrustState:
    """The last temperature that was believed, and since when one that fell too fast is doubted."""

    celsius: float | None = None
    at_s: float = 0.0
    doubted_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class HeatState:
    """Filters of one device's temperature: ``samples`` are the newest ones with their times, oldest first, and
    ``unchanged_s`` is for how long the newest has read the same."""

    filtered: float | None = None
    trend_per_s: float = 0.0
    samples: tuple[tuple[float, float], ...] = ()
    unchanged_s: float = 0.0
    guard_hits: int = 0


@dataclass(frozen=True, slots=True)
class FirmwareState:
    """What the firmware said of its thresholds, and what it was seen to do.

    ``limit_celsius`` and ``reset_celsius`` are those that were accepted, ``told_*`` what was told last, ``refused`` why
    it was not accepted. ``learned_celsius`` is a temperature at which the firmware was seen to throttle.
    """

    told_limit: float | None = None
    told_reset: float | None = None
    limit_celsius: float | None = None
    reset_celsius: float | None = None
    refused: str | None = None
    throttling: bool = False
    events: int = 0
    learned_celsius: float | None = None


@dataclass(frozen=True, slots=True)
class PowerState:
    """Recursive least squares of watts: coefficients, and their covariance row by row."""

    coefficients: tuple[float, ...] = ()
    covariance: tuple[float, ...] = ()
    watts: float | None = None
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class MemoryState:
    """The batch cap, how many rungs of the memory ladder are in use, and whether the last cut freed anything."""

    cap: int | None = None
    level: int = 0
    changed_s: float | None = None
    share_at_cut: float | None = None
    useless_cuts: int = 0


@dataclass(frozen=True, slots=True)
class QueueState:
    """Rungs of the queue ladder in use."""

    level: int = 0
    since_s: float | None = None
    changed_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClockState:
    """The wanted share of the rated clock, and since when the duty has been low or full."""

    share: float = 1.0
    low_since_s: float | None = None
    full_since_s: float | None = None
    changed_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModeState:
    """Where the mode machine stands.

    ``since_s`` is when the mode was entered, ``hold_s`` how long it lasts at least, ``came_from`` the mode a relapse
    returns to. ``relapses`` counts entries into CRITICAL or FALLBACK without a long clean time between, the last
    trouble being at ``trouble_s``. ``stage`` is that of RECOVERING: 2**stage slots, with ``worked_s`` of work seen.
    """

    mode: Mode = "NOMINAL"
    since_s: float | None = None
    hold_s: float = 0.0
    came_from: Mode = "NOMINAL"
    binding: Binding = "none"
    rule: str = "START"
    low_since_s: float | None = None
    calm_since_s: float | None = None
    below_target_since_s: float | None = None
    critical_since_s: float | None = None
    entry_celsius: float | None = None
    relapses: int = 0
    trouble_s: float | None = None
    stage: int = 0
    stage_since_s: float | None = None
    worked_s: float = 0.0
    engine_seen: bool = False


@dataclass(frozen=True, slots=True)
class DeviceState:
    """All that is remembered of one device.

    ``duty`` is the last one decided, ``demand`` what it could use, ``usual_busy`` its busy share of the last seconds.
    """

    name: str
    trust: TrustState = TrustState()
    heat: HeatState = HeatState()
    firmware: FirmwareState = FirmwareState()
    power: PowerState = PowerState()
    memory: MemoryState = MemoryState()
    queue: QueueState = QueueState()
    clock: ClockState = ClockState()
    mode: ModeState = ModeState()
    demand: float = 1.0
    duty: float = 1.0
    usual_busy: float = 1.0


@dataclass(frozen=True, slots=True)
class LawState:
    """One heatsink: its budget (mean duty of its devices), the integral behind it, and the devices by name.

    ``profile`` identifies the numbers the state was made with, ``woke_s`` when the last long gap ended.
    """

    at_s: float | None = None
    woke_s: float | None = None
    budget: float = 1.0
    integral: float = 1.0
    profile: str = ""
    devices: tuple[DeviceState, ...] = ()
