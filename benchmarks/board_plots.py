"""Plots of the board runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from board_runs import Run

_COLOURS = {"firmware": "#c0392b", "script": "#e09f3e", "governor": "#1b6ca8"}
_SMOOTH_S = 5


def draw(runs: "Sequence[Run]", target_celsius: float, cliff_celsius: float, folder: Path) -> list[Path]:
    """Write ``board-runs.png`` and ``board-gaps.png`` into ``folder``; returns their paths."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    figure, (heat, pace, tokens) = plt.subplots(3, 1, figsize=(9, 8), sharex=True, layout="constrained")
    for run in runs:
        colour, minutes = _COLOURS[run.name], [at / 60 for at in run.trace.at_s]
        heat.plot(minutes, run.trace.celsius, color=colour, linewidth=1, label=run.name)
        speed = [duty * clock for duty, clock in zip(run.trace.duty, run.trace.clock_share, strict=True)]
        pace.plot(minutes, speed, color=colour, linewidth=1)
        smooth = _smoothed(run.tokens_per_s)
        tokens.plot([second / 60 for second in range(len(smooth))], smooth, color=colour, linewidth=1)
    heat.axhline(target_celsius, color="grey", linestyle=":", linewidth=1, label="governor's target")
    heat.axhline(cliff_celsius, color="black", linestyle="--", linewidth=1, label="firmware halves the clock")
    heat.set_ylabel("chip, °C")
    heat.legend(loc="lower right", fontsize=8, ncols=2)
    pace.set_ylabel("duty × clock")
    pace.set_ylim(0, 1.05)
    tokens.set_ylabel("tokens/s")
    tokens.set_ylim(bottom=0)
    tokens.set_xlabel("minutes")
    figure.suptitle("A hot board under 16 streams (simulated)")
    paths = [folder / "board-runs.png", folder / "board-gaps.png"]
    figure.savefig(paths[0], dpi=110)
    plt.close(figure)

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for run in runs:
        shares = [100 * (i + 1) / (len(run.gap_percentiles_ms) + 1) for i in range(len(run.gap_percentiles_ms))]
        axes.plot(shares, run.gap_percentiles_ms, color=_COLOURS[run.name], label=run.name)
    axes.set_xlabel("percent of tokens")
    axes.set_ylabel("time since the token before, ms")
    axes.set_yscale("log")
    axes.legend()
    figure.suptitle("Time between the tokens of a stream (simulated board)")
    figure.savefig(paths[1], dpi=110)
    plt.close(figure)
    return paths


def _smoothed(values: Sequence[float]) -> list[float]:
    return [
        sum(values[max(0, i - _SMOOTH_S + 1) : i + 1]) / len(values[max(0, i - _SMOOTH_S + 1) : i + 1])
        for i in range(len(values))
    ]
