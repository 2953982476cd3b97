"""The sensor agent: a small process that reads sensors of one device and prints JSON lines.

    {"sensor": "psutil", "at_s": 12.5, "age_s": 0.0, "readings": {"memory_used_bytes": 1.0e9}, "problem": null}

``at_s`` is this process's monotonic clock, ``age_s`` how long before it the readings were measured. A sensor that
cannot be read says why in ``problem``, and adds ``"unusable": true`` when it cannot work here at all. The agent may
hang in a driver, and be killed for it, without anyone else noticing; for that reason it imports as little as it can.
"""

import argparse
import json
import os
import select
import signal
import sys
import time
from typing import NoReturn

from coldplate.device_id import DeviceId
from coldplate.parent import end_with_parent
from coldplate_governor.sensors.base import AGE, Readings, Sensor, SensorError, SensorUnusable
from coldplate_governor.sensors.registry import DEFAULT_TIMEOUT_S, SENSORS, make_sensor
from coldplate_governor.sensors.tool import end_tools

PROGRAM = "coldplate-governor sense"


def main(argv: list[str]) -> None:
    """Print samples until standard output closes or a signal comes. Bad flags end it with code 2 and one line."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Print what sensors say of a device, as JSON lines.")
    parser.error = _fail  # type: ignore[method-assign]
    parser.add_argument("--device", required=True, help="cpu or npu:N")
    parser.add_argument(
        "--sensor",
        action="append",
        required=True,
        metavar="NAME[=ARGUMENT]",
        help="repeatable; " + "; ".join(f"{name} (argument: {kind.argument})" for name, kind in SENSORS.items()),
    )
    parser.add_argument("--interval-s", type=float, default=1.0, help="seconds between samples (default 1)")
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        help=f"seconds for a run of a tool or a request (default {DEFAULT_TIMEOUT_S:g})",
    )
    parser.add_argument("--follow-parent", type=int, metavar="PID", help="end when this parent or standard input ends")
    flags = parser.parse_args(argv)
    if not 0.05 <= flags.interval_s <= 60:
        _fail(f"--interval-s is {flags.interval_s:g}: expected 0.05 to 60")
    if not 0.1 <= flags.timeout_s <= 60:
        _fail(f"--timeout-s is {flags.timeout_s:g}: expected 0.1 to 60")
    try:
        device = DeviceId.parse(flags.device)
        sensors = [make_sensor(device, spec, flags.timeout_s) for spec in flags.sensor]
    except ValueError as error:
        _fail(str(error))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    if flags.follow_parent is not None:
        end_with_parent(flags.follow_parent, signal.SIGKILL)
    try:
        _run(sensors, flags.interval_s, watch_stdin=flags.follow_parent is not None)
    except BrokenPipeError:
        os._exit(0)  # nobody listens any more


def _end(*_: object) -> None:
    end_tools()
    os._exit(0)


def _run(sensors: list[Sensor], interval_s: float, watch_stdin: bool) -> None:
    due, first = time.monotonic(), True
    while True:
        for sensor in sensors:
            print(json.dumps(_sample(sensor)), flush=True)
        # The second sample comes sooner: a first one is not believed before another agrees.
        due, first = max(due + interval_s * (0.5 if first else 1.0), time.monotonic()), False
        if not watch_stdin:
            time.sleep(max(0.0, due - time.monotonic()))
            continue
        while (left := due - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left)[0] and not os.read(sys.stdin.fileno(), 4096):
                return


def _sample(sensor: Sensor) -> dict[str, object]:
    readings: Readings = {}
    problem: str | None = None
    unusable = False
    try:
        readings = sensor.read()
    except SensorError as error:
        readings, problem, unusable = error.readings, str(error), isinstance(error, SensorUnusable)
    except Exception as error:  # a driver's surprise in one sensor must not silence the others
        problem = f"{sensor.name}: {type(error).__name__}: {error}"
    told = {name: value for name, value in readings.items() if name != AGE}
    line: dict[str, object] = {"sensor": sensor.name, "at_s": round(time.monotonic(), 3)}
    line |= {"age_s": readings.get(AGE, 0.0), "readings": told, "problem": problem}
    return line | {"unusable": True} if unusable else line


def _fail(message: str) -> NoReturn:
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
