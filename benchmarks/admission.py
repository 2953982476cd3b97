"""Admission under load, with synthetic engines and callers: ``python benchmarks/admission.py``.

Dispatcher, queue, door, fleet and limits are the server's own code.

Virtual time, deterministic by seed. Each figure is the worst over the seeds; exit code 1 when one misses its bound. Two
engines, of few slots and of little cache, are only shown.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from admission_cases import CASES, SETUPS, Figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Queue waits, goodput, recovery and fairness of the server's admission."
    )
    parser.add_argument("--case", action="append", choices=CASES, help="only this one; repeatable")
    parser.add_argument("--setup", action="append", choices=SETUPS, help="only this engine; repeatable")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    seeds = range(args.seed, args.seed + args.seeds)
    found = []
    for case in args.case or CASES:
        for name in args.setup or SETUPS:
            judged = SETUPS[name].judged
            for figure in _worst([CASES[case](SETUPS[name], seed) for seed in seeds]):
                print(_line(case, name, figure, judged=judged), flush=True)
                found.append(
                    {"case": case, "setup": name, "figure": figure.name, "unit": figure.unit}
                    | {
                        "value": figure.value,
                        "bound": figure.bound,
                        "at_most": figure.at_most,
                        "met": figure.met,
                        "judged": judged,
                    }
                )
    if args.json:
        Path(args.json).write_text(json.dumps({"seeds": list(seeds), "figures": found}, indent=1), encoding="utf-8")
    sys.exit(not all(entry["met"] or not entry["judged"] for entry in found))


def _worst(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    return [
        (max if same[0].at_most else min)(same, key=lambda figure: figure.value) for same in zip(*runs, strict=True)
    ]


def _line(case: str, setup: str, figure: Figure, *, judged: bool) -> str:
    sign, unit = "<=" if figure.at_most else ">=", f" {figure.unit}" if figure.unit else ""
    verdict = "ok" if figure.met else "MISSED" if judged else "above" if figure.at_most else "below"
    return f"{verdict:6} {case:32} {setup:25} {figure.name:55} {figure.value:8.3f}{unit}  ({sign} {figure.bound:g})"


if __name__ == "__main__":
    main()
