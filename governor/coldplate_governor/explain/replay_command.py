"""``coldplate-governor replay FILE``: whether a recording's decisions come out again, and what others would have done.

Exit codes: 0 they do, bit for bit; 1 the first difference is named; 2 there is nothing that can be replayed, or lines
are damaged.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from coldplate import __version__
from coldplate.profile import DeviceProfile, load_profile
from coldplate.settings import EXIT_BAD_SETTINGS, fail
from coldplate.words import seconds_words
from coldplate_governor.explain.change import Change, missing
from coldplate_governor.explain.encoder import STATE_EVERY_S
from coldplate_governor.explain.law_id import law_id
from coldplate_governor.explain.place import default_file
from coldplate_governor.explain.recording import NoRecording, files_of, last_moment, read
from coldplate_governor.explain.replay import Replay, ReplayReport
from coldplate_governor.explain.what_if import Comparison, WhatIf

PROGRAM = "coldplate-governor replay"
EXIT_DIFFERS = 1
_SHOWN_DAMAGE = 5


def main(argv: list[str]) -> None:
    """Replay and end the process with its exit code."""
    flags = _flags(argv)
    path = Path(flags.file)
    try:
        if flags.what_if or flags.profile:
            sys.exit(_what_if(path, _profiles(flags.profile), flags.json))
        sys.exit(_replay(path, _moment(path, flags.since), flags.json, flags.changes))
    except NoRecording as error:
        fail(PROGRAM, str(error))
    except ValueError as error:
        fail(PROGRAM, str(error))
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone
        sys.exit(EXIT_BAD_SETTINGS)


def _flags(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Decide again what a recording holds, and tell whether it comes out the same, bit for bit.",
    )
    parser.error = _usage  # type: ignore[method-assign]
    parser.add_argument(
        "file",
        nargs="?",
        default=str(default_file("governor")),
        metavar="FILE",
        help="the recording; FILE.1 beside it is read first (default %(default)s)",
    )
    parser.add_argument(
        "--from",
        dest="since",
        type=float,
        metavar="SECONDS",
        help="begin there: monotonic seconds as recorded, or negative: so long before the end",
    )
    parser.add_argument("--changes", action="store_true", help="list every change with its causes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="[DEVICE=]PROFILE",
        help="repeatable: decide with another profile (a name, or a .toml file), and compare",
    )
    parser.add_argument("--what-if", action="store_true", help="compare also with a recording of another law")
    return parser.parse_args(argv)


def _usage(message: str) -> NoReturn:
    fail(PROGRAM, message)


def _profiles(texts: list[str]) -> dict[str, DeviceProfile]:
    """Profiles by device; the empty name stands for every device."""
    found: dict[str, DeviceProfile] = {}
    for text in texts:
        device, _, profile = text.rpartition("=")
        if device in found:
            raise ValueError(f"--profile {text}: there is one for {device or 'every device'} already")
        found[device] = load_profile(profile)
    return found


def _moment(path: Path, since: float | None) -> float | None:
    """Where to look for the first state, so that the replay has begun by ``since``."""
    if since is None:
        return None
    if since < 0:
        end = last_moment(path)
        if end is None:
            raise NoRecording(f"{path}: the end of it holds no tick, so --from needs the seconds as recorded")
        since += end
    return since - STATE_EVERY_S


def _replay(path: Path, from_s: float | None, as_json: bool, with_changes: bool) -> int:
    replay = Replay(from_s)
    listed: list[dict[str, Any]] = []
    complete = 0
    for replayed in replay.run(read(path)):
        for change in replayed.changes:
            complete += not missing(change)
            if with_changes and as_json:
                listed.append(_change_json(change))
            elif with_changes:
                print(f"{change.at_s:12.1f}  {change.device}: {change.text}")
    report = replay.report
    code = _exit_code(report)
    if as_json:
        body = {
            "identical": code == 0,
            "ticks": report.ticks,
            "identical_ticks": report.identical,
            "skipped_ticks": report.skipped,
            "lost_ticks": report.lost,
            "starts": report.starts,
            "changes": report.changes,
            "complete_changes": complete,
            "from_s": report.first_s,
            "to_s": report.last_s,
            "law": law_id(),
            "version": __version__,
            "recorded_versions": report.versions,
            "foreign": report.foreign,
            "damage": [{"place": item.place, "problem": item.problem, "cut": item.cut} for item in report.damage],
            "difference": asdict(report.difference) if report.difference else None,
        }
        print(json.dumps(body | ({"changed": listed} if with_changes else {}), indent=2))
    else:
        print("\n".join(_lines(path, report, complete)))
    return code


def _exit_code(report: ReplayReport) -> int:
    if report.difference is not None:
        return EXIT_DIFFERS
    return EXIT_BAD_SETTINGS if report.damaged or not report.ticks else 0


def _lines(path: Path, report: ReplayReport, complete: int) -> list[str]:
    """The report for a person: what matters most comes last."""
    names = " and ".join(file.name for file in files_of(path))
    span = seconds_words((report.last_s or 0.0) - (report.first_s or 0.0))
    shown = [f"{names}: {report.ticks} ticks over {span}, {report.changes} changes, {complete} with a complete record"]
    shown += [
        f"{'note' if item.cut else 'DAMAGED'}: {item.place} {item.problem}" for item in report.damage[:_SHOWN_DAMAGE]
    ]
    if len(report.damage) > _SHOWN_DAMAGE:
        shown.append(f"and {len(report.damage) - _SHOWN_DAMAGE} more places")
    if report.lost:
        shown.append(f"note: {report.lost} ticks were not recorded, for a full disk or a slow one")
    shown += [
        f"ANOTHER LAW: recorded by {words}; --what-if shows what this one would have decided"
        for words in report.foreign
    ]
    if report.skipped:
        shown.append(f"{report.skipped} ticks were left out: other law, or no state to begin with before the next")
    if report.difference is not None:
        shown.append(f"DIFFERENT after {report.identical} identical ticks: {report.difference}")
    elif not report.ticks:
        shown.append("nothing could be replayed")
    elif report.damaged:
        shown.append(f"the {report.identical} ticks that can be read come out the same, bit for bit")
    else:
        shown.append("every decision comes out the same, bit for bit")
    return shown


def _change_json(change: Change) -> dict[str, Any]:
    return {**asdict(change), "text": change.text, "missing": missing(change)}


def _what_if(path: Path, profiles: dict[str, DeviceProfile], as_json: bool) -> int:
    found = WhatIf(profiles)
    found.run(read(path))
    if as_json:
        devices = {device: _comparison_json(item) for device, item in sorted(found.devices.items())}
        print(json.dumps({"devices": devices, "problems": found.problems}, indent=2))
    else:
        print("\n".join(_comparison_lines(found)))
    return 0 if found.devices else EXIT_BAD_SETTINGS


def _comparison_lines(found: WhatIf) -> list[str]:
    shown = [f"note: {problem}" for problem in found.problems[:_SHOWN_DAMAGE]]
    for device, item in sorted(found.devices.items()):
        hottest = f", hottest {item.hottest_celsius:.1f} °C" if item.hottest_celsius is not None else ""
        shown.append(f"{device}: {seconds_words(item.then.ticks)} recorded{hottest}")
        for label, profile, course in (
            ("as it was", item.profile_then, item.then),
            ("what if", item.profile_now, item.now),
        ):
            modes = ", ".join(f"{mode} {count / course.ticks:.0%}" for mode, count in course.modes.most_common())
            shown.append(
                f"  {label} ({profile}): duty {course.mean_duty:.1%} on average, {course.lowest_duty:.0%} at least, "
                f"{course.changes} changes, {modes}"
            )
        parts = f"the two part at {item.parts_at_s:.1f} s" if item.parts_at_s is not None else "the two never part"
        shown.append(f"  {parts}")
    if not found.devices:
        return [*shown, "nothing could be decided again"]
    return [
        *shown,
        "The temperatures are those of the run as it was: other decisions would have changed them.",
    ]


def _comparison_json(item: Comparison) -> dict[str, Any]:
    courses = {
        name: {
            "profile": profile,
            "ticks": course.ticks,
            "mean_duty": course.mean_duty,
            "lowest_duty": course.lowest_duty,
            "changes": course.changes,
            "modes": dict(course.modes),
        }
        for name, profile, course in (("then", item.profile_then, item.then), ("now", item.profile_now, item.now))
    }
    return {**courses, "hottest_celsius": item.hottest_celsius, "parts_at_s": item.parts_at_s}
