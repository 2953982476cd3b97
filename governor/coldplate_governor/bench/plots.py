"""Pictures of the benchmark: temperature and duty over time, and work against the temperature limit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coldplate_governor.bench.metrics import hottest
from coldplate_governor.bench.outcome import OURS
from coldplate_governor.bench.suite import CurvePoint, Results
from coldplate_governor.twin.simulate import Run

_COLOURS = {OURS: "tab:blue", "oracle": "tab:green", "firmware only": "tab:red"}
_SMOOTH_S = 30  # pictures of hours: a pixel is a minute


class PlotError(RuntimeError):
    """Pictures cannot be drawn; the text says why."""


def draw_all(results: Results, folder: Path) -> list[Path]:
    """One picture for each nominal plant and trace, and one of the curve. Returns the files. Raises PlotError."""
    plt = _pyplot()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlotError(f"cannot write pictures to {folder}: {error.strerror}") from error
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in results.pictures:
        groups.setdefault((run.plant.kind, run.trace.name), []).append(run)
    files = [_time(plt, kind, trace, runs, folder) for (kind, trace), runs in groups.items()]
    return files + ([_curve(plt, results.curve, folder)] if results.curve else [])


def _time(plt: Any, kind: str, trace: str, runs: Sequence[Run], folder: Path) -> Path:
    figure, (above, below) = plt.subplots(2, 1, figsize=(11, 7), sharex=True, layout="constrained")
    for run in runs:
        ours = run.controller == OURS
        style = {"label": run.controller, "linewidth": 1.6 if ours else 0.8, "zorder": 3 if ours else 2}
        style["color"] = _COLOURS.get(run.controller)
        minutes = [second / 60 for second in range(run.trace.seconds)]
        above.plot(minutes, hottest(run), **style)
        duty = [d * c for d, c in zip(run.chips[0].duty, run.chips[0].clock, strict=True)]
        below.plot(minutes, _smooth(duty), **style)
    heat = runs[0].plant.profile.temperature
    above.axhline(heat.target_celsius, color="grey", linestyle="--", linewidth=0.8)
    above.axhline(heat.firmware_cliff_celsius, color="black", linestyle=":", linewidth=0.8)
    above.set_ylabel("junction, °C (target dashed, cliff dotted)")
    above.set_ylim(bottom=heat.target_celsius - 25)
    below.set_ylabel(f"duty × clock, mean of {_SMOOTH_S} s")
    below.set_xlabel("minutes")
    above.set_title(f"{runs[0].plant.card.name}: {trace} (digital twin)")
    below.legend(fontsize="small", ncols=3, loc="lower left")
    path = folder / f"{kind}-{trace.replace(', ', '-').replace(' ', '-')}.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _curve(plt: Any, points: Sequence[CurvePoint], folder: Path) -> Path:
    kinds = list(dict.fromkeys(point.kind for point in points))
    figure, axes = plt.subplots(1, len(kinds), figsize=(4.2 * len(kinds), 4.2), layout="constrained", squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        for controller in dict.fromkeys(point.controller for point in points):
            mine = [p for p in points if p.kind == kind and p.controller == controller]
            axis.plot(
                [p.p99_celsius for p in mine],
                [p.tokens_per_s for p in mine],
                marker="o",
                label=controller,
                color=_COLOURS.get(controller),
            )
        axis.set_title(kind)
        axis.set_xlabel("p99 of the junction, °C")
    axes[0][0].set_ylabel("tokens/s, steady load")
    axes[0][0].legend(fontsize="small")
    path = folder / "work-by-temperature.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _smooth(values: Sequence[float]) -> list[float]:
    out: list[float] = []
    total = 0.0
    for index, value in enumerate(values):
        total += value - (values[index - _SMOOTH_S] if index >= _SMOOTH_S else 0.0)
        out.append(total / min(index + 1, _SMOOTH_S))
    return out


def check_can_draw() -> None:
    """Raise PlotError when no picture could be drawn, before hours are simulated for it."""
    _pyplot()


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise PlotError("pictures need matplotlib: pip install 'coldplate[bench]', or leave --plots out") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
