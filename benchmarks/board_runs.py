"""A hot board under 16 streams through the real server, three times: firmware only, the 80 degC script, the governor.

The board is a simulated 310P that starts warm in warm air; its chip is modelled as running an 8B model in 8 bits, at
real time. Of each run: cuts of the clock by the firmware, the p99 of the time between two tokens of a stream, tokens
against those of an oracle with the same temperature limit (full speed up to the limit, then exactly what holds it,
with perfect knowledge of the same board), and the temperatures it ran at. A first run on a cold board tells full speed.

The board runs at real time: a governor's seconds are real, so a faster board would be a slower governor.

    python benchmarks/board_runs.py --minutes 10 --json board_runs.json --plots docs/images
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from board_oracle import oracle_seconds
from board_plots import draw
from modelled_service import COOL, MODEL_SIZE, Callers, Service, Tally, service

from coldplate.limits import NO_LIMITS, Limits
from coldplate.profile import load_profile
from coldplate_client.admin import AdminClient
from coldplate_client.client import Client
from coldplate_engine.importing.demo_model import ensure_demo_model
from coldplate_governor.board.client import BoardClient, BoardUnreachable
from coldplate_governor.board.kinds import KINDS, profiles_of

CHIP = "310p"
SCRIPT_LIMIT_CELSIUS = 80.0
SCRIPT_PERIOD_S = 5.0
SCRIPT_DUTY = 0.36  # of the span of power, as 600 MHz leaves in the report the script is from
_RATE_S = 25.0
_SETTLE_S = 5.0


@dataclass(slots=True)
class Trace:
    """One value a second."""

    at_s: list[float] = field(default_factory=list)
    celsius: list[float] = field(default_factory=list)
    clock_share: list[float] = field(default_factory=list)
    duty: list[float] = field(default_factory=list)
    mode: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """What one run came to. ``limit_celsius`` is what the run, and its oracle, are held to."""

    name: str
    limit_celsius: float
    seconds: float
    tokens: int
    oracle_tokens: float
    firmware_events: int
    p50_gap_ms: float
    p99_gap_ms: float
    median_celsius: float
    p95_celsius: float
    hottest_celsius: float
    statuses: dict[str, int]
    wrong_tokens: int
    trace: Trace
    tokens_per_s: list[float]
    gap_percentiles_ms: list[float]

    @property
    def of_oracle(self) -> float:
        return self.tokens / self.oracle_tokens


async def full_speed(model: Path, args: argparse.Namespace) -> tuple[float, float]:
    """Tokens/s of a cold board, and the share of time its chip then computes."""
    with service(model, 1, port=args.port, board_args=[f"--chip={CHIP}", *COOL]) as made:
        callers = Callers(made.address, model, args.streams, max_tokens=args.max_tokens)
        with BoardClient(made.board) as board:
            began = time.monotonic()
            tally = await callers.run(asyncio.create_task(asyncio.sleep(_SETTLE_S + _RATE_S)))
            busy = float(board.read(0)["utilization_percent"]) / 100
        since = began + _SETTLE_S
        return tally.tokens(since, since + _RATE_S) / _RATE_S, min(1.0, busy)


def script(made: Service, stop: threading.Event) -> None:
    """Every five seconds: above 80 degC slow, else full speed."""
    with BoardClient(made.board) as board, AdminClient(made.control) as admin:
        while not stop.wait(SCRIPT_PERIOD_S):
            hot = float(board.read(0)["temperature_celsius"]) > SCRIPT_LIMIT_CELSIUS
            admin.set_limits(Limits(duty=SCRIPT_DUTY) if hot else NO_LIMITS)


def watch(made: Service, trace: Trace, began: float, stop: threading.Event) -> None:
    """Fill ``trace`` once a second."""
    with BoardClient(made.board) as board, Client(made.address) as client:
        while not stop.wait(1.0):
            with suppress(BoardUnreachable):
                said = board.read(0)
                device = client.status().devices[0]
                duty = device.limits.duty if device.limits.HasField("duty") else 1.0
                trace.at_s.append(round(time.monotonic() - began, 2))
                trace.celsius.append(float(said["temperature_celsius"]))
                trace.clock_share.append(float(said["frequency_mhz"]) / float(said["rated_frequency_mhz"]))
                trace.duty.append(duty)
                trace.mode.append(device.governor_mode)


async def one_run(
    name: str, limit: float, model: Path, args: argparse.Namespace, number: int, speed: tuple[float, float]
) -> Run:
    board_args = [f"--chip={CHIP}", f"--ambient-celsius={args.ambient}", f"--start-temperature-celsius={args.start}"]
    with service(model, 1, port=args.port + number, board_args=board_args, governor=name == "governor") as made:
        stop, trace, began = threading.Event(), Trace(), time.monotonic()
        with BoardClient(made.board) as board:
            board.poke("heat", celsius=args.start)  # it has cooled while the server started
            before = int(board.read(0)["firmware_throttle_events"])
            beside: list[Callable[[], None]] = [lambda: watch(made, trace, began, stop)]
            if name == "script":
                beside.append(lambda: script(made, stop))
            threads = [threading.Thread(target=work, daemon=True) for work in beside]
            for thread in threads:
                thread.start()
            callers = Callers(made.address, model, args.streams, max_tokens=args.max_tokens)
            try:
                tally = await callers.run(asyncio.create_task(_count_down(name, args.minutes * 60, trace)))
            finally:
                stop.set()
                for thread in threads:
                    thread.join(10)
            events = int(board.read(0)["firmware_throttle_events"]) - before
    return summarise(name, limit, args, speed, tally, trace, events, began)


async def _count_down(name: str, seconds: float, trace: Trace) -> None:
    """Wait, and say every half minute where it stands."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(30.0, left))
        now = f"{trace.celsius[-1]:.0f} degC, duty {trace.duty[-1]:.2f}" if trace.celsius else "starting"
        print(f"  {name}: {max(0.0, end - time.monotonic()):4.0f} s left, {now}", flush=True)


def summarise(
    name: str,
    limit: float,
    args: argparse.Namespace,
    speed: tuple[float, float],
    tally: Tally,
    trace: Trace,
    events: int,
    began: float,
) -> Run:
    seconds = args.minutes * 60
    rate, busy = speed
    card, _ = KINDS[CHIP].cards[-1]
    full_s = oracle_seconds(card, args.ambient, args.start, limit, seconds, busy, args.streams)
    gaps = sorted(1000 * gap for gap in tally.gaps_s)
    cuts = statistics.quantiles(gaps, n=1000)
    heat = sorted(trace.celsius)
    return Run(
        name=name,
        limit_celsius=limit,
        seconds=seconds,
        tokens=tally.tokens(began, began + seconds),
        oracle_tokens=rate * full_s,
        firmware_events=events,
        p50_gap_ms=cuts[499],
        p99_gap_ms=cuts[989],
        median_celsius=statistics.median(heat),
        p95_celsius=heat[int(0.95 * (len(heat) - 1))],
        hottest_celsius=heat[-1],
        statuses=tally.statuses(),
        wrong_tokens=sum(not end.true for end in tally.ended),
        trace=trace,
        tokens_per_s=_by_second(tally, began, int(seconds)),
        gap_percentiles_ms=cuts,
    )


def _by_second(tally: Tally, began: float, seconds: int) -> list[float]:
    counts = [0.0] * seconds
    for at, tokens in tally.deltas:
        if 0 <= (second := int(at - began)) < seconds:
            counts[second] += tokens
    return counts


def report(runs: list[Run], speed: tuple[float, float]) -> bool:
    """Print the table; whether the governor kept what it promises."""
    print(f"full speed of the cold board: {speed[0]:.1f} tokens/s, busy {speed[1]:.0%} of the time\n")
    print(
        "| run | limit °C | ran at °C (median, p95, hottest) | clock cuts | p50 / p99 gap ms | tokens | of its oracle |"
    )
    print("|---|---|---|---|---|---|---|")
    for run in runs:
        print(
            f"| {run.name} | {run.limit_celsius:g} | {run.median_celsius:.0f}, {run.p95_celsius:.0f}, "
            f"{run.hottest_celsius:.0f} | {run.firmware_events} | {run.p50_gap_ms:.0f} / {run.p99_gap_ms:.0f} | "
            f"{run.tokens} | {run.of_oracle:.3f} |"
        )
    ours = next((run for run in runs if run.name == "governor"), None)
    if ours is None or len(runs) < 2:
        return True
    best_gap = all(ours.p99_gap_ms <= run.p99_gap_ms for run in runs)
    good = ours.firmware_events == 0 and best_gap and ours.of_oracle >= 0.95
    print(f"\ngovernor: no clock cut, the best p99 gap, at least 0.95 of its oracle: {'yes' if good else 'NO'}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder with config and tokenizer; default: the demo model")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each run")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=256, help="of an answer; half to all of it are asked for")
    parser.add_argument("--ambient", type=float, default=45.0, help="degC of the air")
    parser.add_argument("--start", type=float, default=75.0, help="degC the board starts at")
    parser.add_argument("--runs", nargs="+", choices=["firmware", "script", "governor"], help="default: all")
    parser.add_argument("--port", type=int, default=50_971)
    parser.add_argument("--json", type=Path, help="write every figure there")
    parser.add_argument("--plots", type=Path, help="folder for board-runs.png and board-gaps.png")
    args = parser.parse_args()
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    model = args.model or ensure_demo_model(progress=lambda phase, share: None)
    heat = load_profile(profiles_of(CHIP, 1)[0]).temperature
    limits = {"firmware": heat.firmware_cliff_celsius, "script": SCRIPT_LIMIT_CELSIUS, "governor": heat.target_celsius}
    speed = asyncio.run(full_speed(model, args))
    print(f"full speed: {speed[0]:.1f} tokens/s", flush=True)
    runs = []
    for number, name in enumerate(args.runs or limits, start=1):
        print(f"{name}: {args.minutes:g} minutes", flush=True)
        runs.append(asyncio.run(one_run(name, limits[name], model, args, number, speed)))
    good = report(runs, speed)
    if args.json:
        facts = {"simulated": True, "modelled_as": MODEL_SIZE, "chip": CHIP, "streams": args.streams}
        facts |= {"ambient_celsius": args.ambient, "start_celsius": args.start, "full_speed_tokens_per_s": speed[0]}
        figures = [asdict(run) | {"of_oracle": run.of_oracle} for run in runs]
        args.json.write_text(json.dumps({**facts, "runs": figures}) + "\n")
    if args.plots:
        for path in draw(runs, heat.target_celsius, heat.firmware_cliff_celsius, args.plots):
            print(f"wrote {path}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
