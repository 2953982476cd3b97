"""Row 20 of the benchmark: whether a run replays bit for bit, and how many of its changes have a complete record."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coldplate.profile import DeviceProfile
from coldplate_governor.explain.change import missing
from coldplate_governor.explain.encoder import TickEncoder
from coldplate_governor.explain.lines import unseal
from coldplate_governor.explain.recording import Entry
from coldplate_governor.explain.replay import Replay, ReplayReport
from coldplate_governor.explain.tick import Tick
from coldplate_governor.law import Decision, Inputs, LawState


@dataclass(frozen=True, slots=True)
class ReplayShares:
    """Of one run. ``problem`` names the first thing that is not as it should be."""

    ticks: int
    identical: int
    changes: int
    complete: int
    problem: str | None

    @property
    def replayed_share(self) -> float:
        return self.identical / self.ticks if self.ticks else 0.0

    @property
    def complete_share(self) -> float:
        return self.complete / self.changes if self.changes else 1.0


class ReplayCheck:
    """Give it every tick of a run: each is written as the governor's recording would have it, read back and decided
    again. Nothing touches a disk."""

    def __init__(self, profile: DeviceProfile, group: str = "group") -> None:
        self._profile = profile
        self._group = group
        self._encoder = TickEncoder(epoch=0)
        self._replay = Replay()
        self._file = Path("memory")
        self._given = 0
        self._complete = 0
        self._problem: str | None = None
        self._read(self._encoder.start())

    def tick(
        self,
        now_s: float,
        before: LawState,
        inputs: Mapping[str, Inputs],
        after: LawState,
        decisions: Mapping[str, Decision],
        ages: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """One call of the law in the run. ``ages`` as in ``Tick``; without them readings count as fresh."""
        if ages is None:
            ages = {device: dict.fromkeys(Inputs.__dataclass_fields__, 0.0) for device in inputs}
        self._given += 1
        tick = Tick(self._group, self._profile, now_s, before, inputs, after, decisions, ages)
        self._read(self._encoder.tick(tick))

    def report(self) -> ReplayShares:
        replayed = self._replay.report
        return ReplayShares(
            self._given, replayed.identical, replayed.changes, self._complete, self._problem or _problem_of(replayed)
        )

    def _read(self, data: bytes) -> None:
        if self._replay.report.difference is not None:
            return
        entries = [Entry(unseal(line), self._file, self._given) for line in data.splitlines()]
        for replayed in self._replay.run(entries):
            for change in replayed.changes:
                lacks = missing(change)
                self._complete += not lacks
                if lacks and self._problem is None:
                    self._problem = f"the change at {change.at_s:.1f} s of {change.device} lacks {', '.join(lacks)}"


def _problem_of(report: ReplayReport) -> str | None:
    if report.difference is not None:
        return str(report.difference)
    return f"{report.damage[0].place} {report.damage[0].problem}" if report.damage else None
