"""Figures of ``peers.py``: medians, intervals, verdicts, the table and the plot."""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RESAMPLES = 2_000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and the interval that holds it with 95 % confidence, by bootstrap."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.4g}–{self.high:.4g})"


def interval(values: Sequence[float], seed: int = 1) -> Interval:
    """The median of ``values``, and its percentile bootstrap interval. ``values`` must not be empty."""
    generator = random.Random(seed)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Interval(medians[cut], statistics.median(values), medians[-1 - cut])


@dataclass(frozen=True, slots=True)
class Floor:
    """``ours`` must be at least ``ratio`` times as fast as the fastest way to run ``peer`` in ``cell``."""

    ours: str
    peer: str
    cell: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """``against`` is the contender that was fastest of the floor's peer."""

    floor: Floor
    against: str
    ratio: Interval

    @property
    def met(self) -> bool:
        return self.ratio.low >= self.floor.ratio

    def __str__(self) -> str:
        sign = "ok  " if self.met else "LOW "
        floor = self.floor
        return f"{sign}{floor.cell}: {floor.ours} is {self.ratio} × {self.against}, at least {floor.ratio:g} wanted"


Rates = dict[str, dict[str, list[float]]]  # contender -> cell -> tokens/s by round


def judge(rates: Rates, floors: Sequence[Floor], peer_of: Mapping[str, str]) -> list[Verdict]:
    """One verdict for each floor whose two sides were measured; rounds are paired."""
    verdicts = []
    for floor in floors:
        cell = floor.cell
        rivals = [name for name, by_cell in rates.items() if peer_of.get(name) == floor.peer and by_cell.get(cell)]
        ours = rates.get(floor.ours, {}).get(cell, [])
        if ours and rivals:
            fastest = max(rivals, key=lambda name: statistics.median(rates[name][floor.cell]))
            pairs = zip(ours, rates[fastest][cell], strict=False)
            verdicts.append(Verdict(floor, fastest, interval([a / b for a, b in pairs])))
    return verdicts


def table(rates: Rates, cells: Sequence[str]) -> str:
    """Markdown: a contender a row, a cell a column, medians with their intervals in tokens/s."""
    lines = ["| tokens/s | " + " | ".join(cells) + " |", "|---|" + "---|" * len(cells)]
    for contender, by_cell in rates.items():
        shown = [str(interval(by_cell[cell])) if by_cell.get(cell) else "–" for cell in cells]
        lines.append(f"| {contender} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def plot(path: Path, title: str, rates: Rates, cells: Sequence[str]) -> None:
    """Bars of the medians with their intervals, a panel a cell."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    columns = min(4, len(cells))
    rows = -(-len(cells) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(4 * columns, 2.8 * rows), squeeze=False)
    for axis, cell in zip(axes.flat, cells, strict=False):
        names = [name for name, by_cell in rates.items() if by_cell.get(cell)]
        found = [interval(rates[name][cell]) for name in names]
        medians = [each.median for each in found]
        errors = [[each.median - each.low for each in found], [each.high - each.median for each in found]]
        colours = ["tab:blue" if name.startswith("coldplate") else "tab:gray" for name in names]
        axis.barh(names, medians, xerr=errors, color=colours)
        axis.invert_yaxis()
        axis.set_title(cell, fontsize=9)
        axis.tick_params(labelsize=7)
    for axis in list(axes.flat)[len(cells) :]:
        axis.set_visible(False)
    figure.suptitle(f"{title}: tokens/s, median and 95 % interval", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
