"""``coldplate-governor bench``: runs the benchmark and says whether the law holds what it promises.

Ends with 0 when every row passes, 1 when one falls short, 2 for bad flags, 130 when interrupted.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any, NoReturn, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from coldplate_governor.bench.field_table import FieldResults, run_field_report
from coldplate_governor.bench.plots import PlotError, check_can_draw, draw_all
from coldplate_governor.bench.report import as_json, print_field, print_suite
from coldplate_governor.bench.suite import QUICK, Results, Scale, run_suite
from coldplate_governor.bench.table import failed, verdicts

PROGRAM = "coldplate-governor bench"
PARTS = ("law", "field-report")


def main(argv: list[str]) -> None:
    """Run, print, write what was asked for, and exit."""
    flags = _flags(argv)
    try:
        code = _bench(flags)
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted, nothing was written", file=sys.stderr)
        raise SystemExit(130) from None
    raise SystemExit(code)


def _bench(flags: argparse.Namespace) -> int:
    suite: Results | None = None
    field: FieldResults | None = None
    with _Bar() as bar:
        if "law" in flags.only:
            scale = QUICK if flags.quick else Scale(drawn=flags.plants)
            suite = run_suite(flags.seed, scale, bar.show, pictures=flags.plots is not None)
        if "field-report" in flags.only:
            field = run_field_report(flags.seed, bar.show)
    console = Console(width=None if sys.stdout.isatty() else 180)
    rows = []
    if suite is not None:
        print_suite(console, suite)
        rows += verdicts(suite)
    if field is not None:
        print_field(console, field)
        rows += field.rows
    if flags.json is not None:
        figures = json.dumps(_finite(as_json(flags.seed, suite, field)), indent=1, ensure_ascii=False)
        flags.json.write_text(figures + "\n", encoding="utf-8")
        console.print(f"figures: {flags.json}")
    if flags.plots is not None and suite is not None:
        for path in draw_all(suite, flags.plots):
            console.print(f"picture: {path}")
    short = [row for row in rows if row.verdict == "FAIL"]
    console.print(f"{len(short)} of {len(rows)} rows fall short." if short else "Every row that was run passes.")
    return 1 if failed(rows) else 0


def _flags(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Run the law and the named baselines on the digital twin in virtual time, and judge the law.",
    )
    parser.error = _fail  # type: ignore[method-assign]
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument(
        "--plots", type=Path, metavar="DIR", help="write pictures (PNG) to this folder; needs matplotlib"
    )
    parser.add_argument("--seed", type=int, default=0, help="of plants, noise and arrivals (default 0)")
    parser.add_argument(
        "--plants", type=int, default=2, help="plants drawn of each kind beside the nominal one (default 2)"
    )
    parser.add_argument("--quick", action="store_true", help="a few plants and traces, in seconds")
    parser.add_argument("--only", action="append", choices=PARTS, help="repeatable; the default is all")
    flags = parser.parse_args(argv)
    flags.only = tuple(flags.only or PARTS)
    if not 0 <= flags.plants <= 1000:
        _fail(f"--plants is {flags.plants}: expected 0 to 1000")
    if flags.json is not None and (flags.json.is_dir() or not flags.json.parent.is_dir()):
        _fail(f"--json is {flags.json}: expected a file in a folder that exists")
    if flags.plots is not None:
        if flags.plots.exists() and not flags.plots.is_dir():
            _fail(f"--plots is {flags.plots}: expected a folder")
        try:
            check_can_draw()
        except PlotError as error:
            _fail(str(error))
    return flags


class _Bar:
    """Progress on standard error: a bar on a terminal, a line for each tenth elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._said = -1
        self._progress = Progress(
            TextColumn("{task.percentage:>3.0f} %"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            transient=True,
            disable=not self._live,
        )
        self._task = self._progress.add_task("", total=1.0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def show(self, share: float, what: str) -> None:
        if self._live:
            self._progress.update(self._task, completed=share, description=what)
        elif int(share * 10) != self._said:
            self._said = int(share * 10)
            print(f"{100 * share:3.0f} % {what}", file=sys.stderr, flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fail(message: str) -> NoReturn:
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    raise SystemExit(2)
