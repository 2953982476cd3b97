"""The lever process: sets one device's clock on request, and puts it back when its governor is gone.

    governor: {"id": 1, "share": 0.41}          null: as it was before
    lever:    {"event": "ready", "levels": [[1.0, "20T_1.6GHz"], …], "in_force": 1.0}
              {"event": "set", "id": 1, "in_force": 0.41, "level": "8T_1.6GHz", "problem": null}
              {"event": "unusable", "problem": "…"}      {"event": "restored", "problem": null}

The share is one of the levels. It may hang in a tool or in the kernel and be killed for it; the next one begins with
putting back what that one found. It ends when standard input does, however the governor ended.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from coldplate.device_id import DeviceId
from coldplate_governor.levers.base import FrequencyLever, Level, LeverError, nearest
from coldplate_governor.levers.hook import DEVICE_VARIABLE
from coldplate_governor.levers.registry import LEVERS, make_lever
from coldplate_governor.levers.saved import Saved, SavedSetting
from coldplate_governor.sensors.tool import end_tools

PROGRAM = "coldplate-governor lever"
RESTORE_S = 20  # then it gives up, and the file on disk tells the next one
_PATIENCE_S = 5.0


class _EndRequested(Exception):
    """SIGTERM or SIGINT."""


def main(argv: list[str]) -> None:
    """Serve until standard input ends. Bad flags end it with code 2 and one line."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Set one device's clock, as told on standard input.")
    parser.error = _fail  # type: ignore[method-assign]
    parser.add_argument("--device", required=True, help="cpu or npu:N")
    names = "; ".join(f"{name} (argument: {kind.argument})" for name, kind in LEVERS.items())
    parser.add_argument("--lever", required=True, metavar="NAME[=ARGUMENT]", help=names)
    parser.add_argument("--state", required=True, type=Path, metavar="FOLDER", help="keeps what was set before")
    parser.add_argument("--restore", action="store_true", help="only put back what was set before")
    flags = parser.parse_args(argv)
    try:
        device = DeviceId.parse(flags.device)
        lever = make_lever(device, flags.lever)
    except ValueError as error:
        _fail(str(error))
    os.environ[DEVICE_VARIABLE] = str(device)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    saved = SavedSetting(flags.state, str(device))
    try:
        with saved.held(_PATIENCE_S):
            _serve(LeverProcess(device, flags.lever, lever, saved), flags.restore)
    except LeverError as error:
        _say("unusable", problem=str(error))
    except _EndRequested:
        pass


class LeverProcess:
    """One lever and what it found; the order of its calls is: ``begin``, ``set`` as often as wanted, ``restore``."""

    def __init__(self, device: DeviceId, spec: str, lever: FrequencyLever, saved: SavedSetting) -> None:
        self._device = device
        self._spec = spec
        self._lever = lever
        self._saved = saved
        self.levels: tuple[Level, ...] = ()
        self.current: Level | None = None

    def begin(self) -> None:
        """Put back what an earlier process left, then prove the lever. Raises LeverError."""
        self.restore()
        original = self._lever.original()
        self._saved.store(Saved(str(self._device), self._spec, original))
        self.levels = self._lever.probe(original)
        self.current = self.levels[0]

    def set(self, share: float | None) -> float:
        """Returns the share in force after reading it back. Raises LeverError."""
        if share is None:
            found = self._saved.load()
            if found is not None:
                self._lever.restore(found.original)
            self.current = self.levels[0]
            return self.current.share
        self.current = nearest(self.levels, share)
        return self._lever.set(self.current)

    def restore(self) -> None:
        """Put back what was set before, by whichever lever, and forget it. Raises LeverError, and does not forget."""
        found = self._saved.load()
        if found is None:
            return
        lever = self._lever if found.lever == self._spec else _lever_of(self._device, found)
        lever.restore(found.original)
        self._saved.clear()


def _serve(process: LeverProcess, only_restore: bool) -> None:
    try:
        if not only_restore:
            process.begin()
            levels = [[level.share, level.name] for level in process.levels]
            _say("ready", levels=levels, in_force=process.levels[0].share)
            while line := sys.stdin.readline():
                _obey(process, line)
    except LeverError as error:
        _say("unusable", problem=str(error))  # at once: putting back may take its time
    except _EndRequested:
        pass
    finally:
        _put_back(process)


def _obey(process: LeverProcess, line: str) -> None:
    try:
        message = json.loads(line)
        number, share = int(message["id"]), message["share"]
        share = None if share is None else float(share)
    except (ValueError, KeyError, TypeError) as error:
        _fail(f"not a request: {line[:80]!r}: {error}")
    in_force, problem = None, None
    try:
        in_force = process.set(share)
    except LeverError as error:
        problem = str(error)
    level = process.current.name if process.current else None
    _say("set", id=number, in_force=in_force, level=level, problem=problem)


def _put_back(process: LeverProcess) -> None:
    """Within RESTORE_S, whatever hangs; the file stays when it could not be done."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(RESTORE_S)
    problem = None
    try:
        process.restore()
    except LeverError as error:
        problem = str(error)
    signal.alarm(0)
    _say("restored", problem=problem)


def _lever_of(device: DeviceId, found: Saved) -> FrequencyLever:
    try:
        return make_lever(device, found.lever)
    except ValueError as error:
        raise LeverError(f"what {found.lever!r} had set before cannot be put back: {error}") from error


def _end(*_: object) -> NoReturn:
    end_tools()
    raise _EndRequested


def _give_up(*_: object) -> NoReturn:
    end_tools()
    os._exit(1)


def _say(event: str, **fields: object) -> None:
    try:
        print(json.dumps({"event": event, **fields}), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the governor is gone, and so soon is its pipe


def _fail(message: str) -> NoReturn:
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
