"""What a run is judged by. Every figure is of true temperatures, not of what the sensor said, unless it says so."""

import math
from collections.abc import Sequence

from coldplate_governor.twin.simulate import ChipRun, Run
from coldplate_governor.twin.traces import AMBIENT_UP_S

REVERSAL_SHARE = 0.1
SETTLED_BAND_CELSIUS = 1.0
SETTLED_FOR_S = 60
FLAP_S = 60
SHOWS_CELSIUS = 2.0  # above the hottest reading of the minute before: the first sample that shows a lost heatsink
CRITICAL_MODES = frozenset({"CRITICAL", "FALLBACK"})


def hottest(run: Run) -> list[float]:
    """The hottest junction of the card, second by second."""
    return [max(values) for values in zip(*(chip.celsius for chip in run.chips), strict=True)]


def overshoot(run: Run, limit: float, until_s: int | None = None) -> float:
    """How far the hottest junction got above ``limit``, in degC; 0 when it never did."""
    return max(0.0, max(hottest(run)[:until_s]) - limit)


def share_above(run: Run, limit: float) -> float:
    """Share of the time above ``limit``, counted from when the temperature has first been at ``limit`` - 1 for a
    minute; 0 when that never was."""
    temperatures = hottest(run)
    start = first_settled(temperatures, limit - 1.0)
    if start is None:
        return 0.0
    late = temperatures[start:]
    return sum(value > limit for value in late) / len(late)


def first_settled(temperatures: Sequence[float], level: float) -> int | None:
    """The second a minute after ``level`` was first reached; None when it is not reached, or too late."""
    for second, value in enumerate(temperatures):
        if value >= level:
            start = second + SETTLED_FOR_S
            return start if start < len(temperatures) else None
    return None


def settling_s(run: Run, target: float, oracle: Run) -> float | None:
    """Seconds from the step to hotter air until the temperature stays within 1 degC of the target for a minute.

    None on a plant where even the hotter air does not bring the oracle to its limit at full duty within that time: it
    has nothing to settle from. A plant that was cold before counts from when the oracle reaches the limit.
    """
    end = AMBIENT_UP_S + 2000
    limited = [
        second
        for second in range(AMBIENT_UP_S, end)
        if any(c.duty[second] * c.clock[second] < 0.98 and c.celsius[second] > target - 1 for c in oracle.chips)
    ]
    if not limited:
        return None
    temperatures = hottest(run)
    start, calm = limited[0], 0
    for second in range(start, end):
        calm = calm + 1 if abs(temperatures[second] - target) <= SETTLED_BAND_CELSIUS else 0
        if calm >= SETTLED_FOR_S:
            return float(second - SETTLED_FOR_S + 1 - start)
    return math.inf


def reversals_per_h(run: Run) -> float:
    """How often an hour the command turns round by more than a tenth of the range: the worst chip."""
    return max(_reversals(chip) for chip in run.chips) * 3600 / run.trace.seconds


def _reversals(chip: ChipRun) -> int:
    count, direction = 0, 0
    high = low = chip.duty[0] * chip.clock[0]
    for duty, clock in zip(chip.duty, chip.clock, strict=True):
        value = duty * clock
        high, low = max(high, value), min(low, value)
        if direction >= 0 and value < high - REVERSAL_SHARE:
            count += direction > 0
            direction, low = -1, value
        elif direction <= 0 and value > low + REVERSAL_SHARE:
            count += direction < 0
            direction, high = 1, value
    return count


def mode_flaps_per_h(run: Run) -> float:
    """Returns to a mode within a minute of leaving it, per hour: the worst chip."""
    return max(_flaps(chip.modes) for chip in run.chips) * 3600 / run.trace.seconds


def _flaps(modes: Sequence[str]) -> int:
    left: dict[str, int] = {}
    count = 0
    for second in range(1, len(modes)):
        if modes[second] != modes[second - 1]:
            left[modes[second - 1]] = second
            if second - left.get(modes[second], -FLAP_S) < FLAP_S:
                count += 1
    return count


def excess_after_fault(run: Run) -> float:
    """How much hotter the chip got during the fault and the five minutes after it than it ever was before, in degC."""
    fault = run.trace.fault
    assert fault is not None
    temperatures = hottest(run)
    at = int(fault.from_s)
    return max(0.0, max(temperatures[at:]) - max(temperatures[:at]))


def contact_alarm_s(run: Run) -> float:
    """Seconds from the first sample that shows the lost heatsink to a critical mode; infinity without one."""
    assert run.trace.contact is not None
    lost, back = run.trace.contact
    chip = run.chips[0]
    highest = max(value for value in chip.read_celsius[lost - 60 : lost] if not math.isnan(value))
    shown = next((s for s in range(lost, back) if chip.read_celsius[s] >= highest + SHOWS_CELSIUS), None)
    if shown is None:
        return math.inf
    alarm = next((s for s in range(lost, back) if chip.modes[s] in CRITICAL_MODES), None)
    return math.inf if alarm is None else max(0.0, float(alarm - shown))


def critical_entries(run: Run) -> int:
    """How often a chip entered a critical mode; in a healthy run every one is a false alarm."""
    return sum(
        now in CRITICAL_MODES and before not in CRITICAL_MODES
        for chip in run.chips
        for before, now in zip(["", *chip.modes], chip.modes, strict=False)
    )


def gap_ratio(run: Run, windows: Sequence[tuple[int, int]]) -> float:
    """p99 of the time between a stream's tokens against what it would be at the mean pace of the same time; the worst
    chip and window. Only seconds in which the chip is held back count."""
    worst = 1.0
    for chip in run.chips:
        for begin, end in windows:
            held = [s for s in range(begin, end) if chip.duty[s] * chip.clock[s] < 0.98]
            gaps = sorted(chip.gap_s[s] for s in held if not math.isnan(chip.gap_s[s]))
            if len(gaps) < 300:
                continue
            steady = len(gaps) / sum(1 / gap for gap in gaps)
            worst = max(worst, percentile(gaps, 99) / steady)
    return worst


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in order, by the nearest rank."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(len(ordered) * percent / 100) - 1))]
