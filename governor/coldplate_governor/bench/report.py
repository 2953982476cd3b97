"""Prints the benchmark's results, and turns them into JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from coldplate_governor.bench.field_table import FieldResults
from coldplate_governor.bench.suite import Results
from coldplate_governor.bench.table import Row, comparisons, verdicts

_COLOUR = {"pass": "green", "FAIL": "bold red", "not run": "dim"}


def print_suite(console: Console, results: Results) -> None:
    """Verdicts of our law, then everybody on the same traces with their temperatures, then work at each limit."""
    _print_rows(console, "Coldplate's law on the digital twin", "row", verdicts(results))
    _print_comparison(console, results)
    console.print(
        "The script is given a clock lever that no chip has. A lower clock saves more power than pacing does, so it "
        "may do more than the oracle, which paces; so may the firmware. Temperatures above the limit make tokens, too."
    )
    if results.curve:
        _print_curve(console, results)
    console.print(f"{results.rejected_plants} drawn plants were thrown away: never hot, or too hot for any duty.")


def print_field(console: Console, results: FieldResults) -> None:
    _print_rows(console, "The field report on the digital twin", "", results.rows)
    for note in results.notes:
        console.print(f"- {note}")


def as_json(seed: int, suite: Results | None, field: FieldResults | None) -> dict[str, Any]:
    """All figures. Infinite ones are null."""
    out: dict[str, Any] = {"seed": seed}
    if suite is not None:
        out["rows"] = [asdict(row) for row in verdicts(suite)]
        out["comparison"] = [asdict(line) for line in comparisons(suite)]
        out["curve"] = [asdict(point) for point in suite.curve]
        out["rejected_plants"] = suite.rejected_plants
        out["outcomes"] = [outcome.as_json() for outcome in suite.outcomes]
    if field is not None:
        out["field_report"] = {
            "model": asdict(field.model),
            "runs": {name: asdict(run) for name, run in field.runs.items()},
            "rows": [asdict(row) for row in field.rows],
            "notes": field.notes,
        }
    return out


def _print_rows(console: Console, title: str, first: str, rows: Sequence[Row]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    table.add_column("figure")
    table.add_column("demanded")
    table.add_column("found", justify="right")
    table.add_column("worst at")
    table.add_column("verdict")
    for row in rows:
        verdict = f"[{_COLOUR[row.verdict]}]{row.verdict}[/]"
        table.add_row(row.number, row.what, row.demanded, row.found, row.worst, verdict)
    console.print(table)


def _print_comparison(console: Console, results: Results) -> None:
    table = Table(
        title="Everybody on the same plants. Work is against an oracle at the controller's own limit: "
        "tokens of a hotter limit are no merit.",
        title_justify="left",
    )
    for name in (
        "trace",
        "controller",
        "limit °C",
        "mean °C",
        "peak °C",
        "above limit",
        "tokens/s",
        "work",
        "worst",
        "firmware /h",
        "turns /h",
    ):
        table.add_column(name, justify="left" if name in ("trace", "controller") else "right")
    for line in comparisons(results):
        table.add_row(
            line.trace,
            line.controller,
            line.limit,
            f"{line.mean_celsius:.1f}",
            f"{line.peak_celsius:.1f}",
            f"{line.overshoot:+.1f}",
            f"{line.tokens_per_s:.1f}",
            f"{line.work:.3f}",
            f"{line.worst_work:.3f}",
            f"{line.firmware_events_per_h:.1f}",
            f"{line.reversals_per_h:.1f}",
        )
    console.print(table)


def _print_curve(console: Console, results: Results) -> None:
    table = Table(title="Work at each temperature limit, nominal plants, steady load", title_justify="left")
    for name in ("plant", "controller", "limit °C", "mean °C", "p99 °C", "tokens/s"):
        table.add_column(name, justify="left" if name in ("plant", "controller") else "right")
    for point in results.curve:
        limit = "cliff" if point.limit_celsius is None else f"{point.limit_celsius:g}"
        table.add_row(
            point.kind,
            point.controller,
            limit,
            f"{point.mean_celsius:.1f}",
            f"{point.p99_celsius:.1f}",
            f"{point.tokens_per_s:.1f}",
        )
    console.print(table)
