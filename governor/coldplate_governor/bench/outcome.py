"""One run in a few numbers; the series behind them are dropped, so that hundreds of hours fit into memory."""

from dataclasses import asdict, dataclass
from typing import Any

from coldplate_governor.bench import metrics
from coldplate_governor.twin.simulate import Run, lost_contact_rise
from coldplate_governor.twin.traces import AMBIENT_DOWN_S, AMBIENT_UP_S

OURS = "Coldplate"
FAST_LOSS_PER_S = 1.0  # of a lost heatsink; on plants where the junction rises slower, the controller itself has time


@dataclass(frozen=True, slots=True)
class Outcome:
    """Temperatures in degC of the hottest junction, times in seconds, shares of 1. None: not a question of this run.

    ``work`` is tokens as a share of the oracle's at ``limit_celsius``. ``overshoot_bound`` is what the profile leaves:
    the smaller of 4 and cliff - target - 1.
    """

    controller: str
    kind: str
    plant: str
    trace: str
    healthy: bool
    hours: float
    limit_celsius: float
    peak_celsius: float
    p99_celsius: float
    mean_celsius: float
    overshoot: float
    overshoot_bound: float
    share_above: float
    tokens_per_s: float
    work: float
    firmware_events: int
    reversals_per_h: float
    flaps_per_h: float
    false_alarms: int
    settling_s: float | None = None
    gap_ratio: float | None = None
    excess: float | None = None
    alarm_s: float | None = None
    above_critical: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(run: Run, oracle: Run, limit: float) -> Outcome:
    """``oracle`` is the oracle's run of the same trace on the same plant, at ``limit``."""
    trace, heat = run.trace, run.plant.profile.temperature
    temperatures = sorted(metrics.hottest(run))
    steady = trace.name == "steady"
    contact = trace.contact is not None
    fast_loss = contact and lost_contact_rise(run.plant) >= FAST_LOSS_PER_S
    return Outcome(
        controller=run.controller,
        kind=run.plant.kind,
        plant=run.plant.name,
        trace=trace.name,
        healthy=trace.healthy,
        hours=trace.seconds / 3600,
        limit_celsius=limit,
        peak_celsius=temperatures[-1],
        p99_celsius=metrics.percentile(temperatures, 99),
        mean_celsius=sum(temperatures) / len(temperatures),
        overshoot=metrics.overshoot(run, heat.target_celsius),
        overshoot_bound=min(4.0, heat.firmware_cliff_celsius - heat.target_celsius - 1),
        share_above=metrics.share_above(run, heat.target_celsius + 1),
        tokens_per_s=run.tokens / trace.seconds,
        work=run.tokens / oracle.tokens,
        firmware_events=run.firmware_events,
        reversals_per_h=metrics.reversals_per_h(run),
        flaps_per_h=metrics.mode_flaps_per_h(run),
        false_alarms=metrics.critical_entries(run) if trace.healthy else 0,
        settling_s=metrics.settling_s(run, heat.target_celsius, oracle) if steady else None,
        gap_ratio=metrics.gap_ratio(run, _plateaus()) if steady else None,
        excess=metrics.excess_after_fault(run) if trace.fault is not None else None,
        alarm_s=metrics.contact_alarm_s(run) if fast_loss and run.controller == OURS else None,
        above_critical=max(temperatures) - heat.critical_celsius if contact else None,
    )


def _plateaus() -> tuple[tuple[int, int], ...]:
    """The second half of each time of constant air in the steady trace, when everything has settled."""
    return ((AMBIENT_UP_S // 2, AMBIENT_UP_S), ((AMBIENT_UP_S + AMBIENT_DOWN_S) // 2, AMBIENT_DOWN_S), (6000, 7200))
