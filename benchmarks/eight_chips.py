"""Eight modelled chips behind one server against one, and what the loss of one costs.

Each chip is a simulated 310P that takes as long for a step as it would with an 8B model in 8 bits; its tokens are
scripted, and every one that a caller gets is checked. Every slot of every chip is taken, and one caller a chip waits:
else the chips that are left would take a lost one's streams at hardly a loss, as decoding is bound by memory.

Prints tokens/s of one chip and of all, their ratio, the rate and the ends of streams after one chip is lost, and the
rate once it is back. Exits 1 when all chips are below 7.5/8 of that many times one, when the loss costs more than the
chip's share and 3 %, or when any stream ended wrongly.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

from modelled_service import MODEL_SIZE, Callers, Service, Tally, service

from coldplate_engine.importing.demo_model import ensure_demo_model
from coldplate_governor.board.client import BoardClient

SCALING_FLOOR = 7.5 / 8
LOSS_SLACK = 0.97
_SETTLE_S = 4.0
_LOST = 3


async def one_chip(made: Service, model: Path, streams: int, seconds: float) -> tuple[float, Tally]:
    """Tokens/s over ``seconds``, after the start has settled."""
    callers = Callers(made.address, model, streams, max_tokens=96)
    began = time.monotonic()
    tally = await callers.run(asyncio.create_task(asyncio.sleep(_SETTLE_S + seconds)))
    since = began + _SETTLE_S
    return tally.tokens(since, since + seconds) / seconds, tally


async def all_chips(
    made: Service, model: Path, streams: int, seconds: float, lost: int, back_s: float
) -> tuple[dict[str, float], Tally, float]:
    """Rates before the loss of a chip, after it and once it is back; the moment of the loss."""
    callers = Callers(made.address, model, streams, max_tokens=96)
    marks: list[float] = []

    async def story(board: BoardClient) -> None:
        await asyncio.sleep(_SETTLE_S)
        marks.append(time.monotonic())
        await asyncio.sleep(seconds)
        marks.append(time.monotonic())
        board.poke("lose", lost)
        await asyncio.sleep(_SETTLE_S + seconds)
        marks.append(time.monotonic())
        board.poke("restore", lost)
        await asyncio.sleep(back_s + seconds)
        marks.append(time.monotonic())

    with BoardClient(made.board) as board:
        tally = await callers.run(asyncio.create_task(story(board)))
    before, loss, restored, end = marks
    rates = {
        "before": tally.tokens(before, loss) / (loss - before),
        "lost": tally.tokens(loss + _SETTLE_S, restored) / (restored - loss - _SETTLE_S),
        "back": tally.tokens(end - seconds, end) / seconds,
    }
    return rates, tally, loss


def measure(args: argparse.Namespace, model: Path) -> dict[str, object]:
    slots = [f"--max-num-seqs={args.streams}"]
    with service(model, 1, port=args.port, engine_args=slots) as made:
        single, first = asyncio.run(one_chip(made, model, args.streams + 1, args.seconds))
    print(f"1 chip, {args.streams} streams: {single:.0f} tokens/s", flush=True)
    lost = min(_LOST, args.chips - 1)
    with service(model, args.chips, port=args.port + 1, engine_args=slots) as made:
        story = all_chips(made, model, args.chips * (args.streams + 1), args.seconds, lost, args.back_seconds)
        rates, tally, at = asyncio.run(story)
    ratio = rates["before"] / single
    kept = rates["lost"] / rates["before"]
    wrong = [*first.wrong_ends(), *tally.wrong_ends()]
    after = tally.statuses(at)
    print(f"{args.chips} chips, {args.chips * args.streams} streams: {rates['before']:.0f} tokens/s, {ratio:.2f} x one")
    print(f"chip {lost} lost: {rates['lost']:.0f} tokens/s, {kept:.3f} of before; its share leaves {_left(args):.3f}")
    print(f"chip {lost} back: {rates['back']:.0f} tokens/s; calls that ended since the loss: {after}")
    print(f"streams that ended wrongly: {len(wrong)} of {len(first.ended) + len(tally.ended)}")
    good = ratio >= SCALING_FLOOR * args.chips and kept >= LOSS_SLACK * _left(args) and not wrong
    return {
        "simulated": True,
        "modelled_as": MODEL_SIZE,
        "chips": args.chips,
        "streams_a_chip": args.streams,
        "tokens_per_s": {"one": single, **rates},
        "ratio": ratio,
        "kept_after_loss": kept,
        "ends_after_loss": after,
        "wrong_ends": len(wrong),
        "good": good,
    }


def _left(args: argparse.Namespace) -> float:
    return float(args.chips - 1) / float(args.chips)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder with config and tokenizer; default: the demo model")
    parser.add_argument("--chips", type=int, default=8)
    parser.add_argument("--streams", type=int, default=16, help="that each chip runs at once")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--back-seconds", type=float, default=15.0, help="for the lost chip's worker to start again")
    parser.add_argument("--port", type=int, default=50_961)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    args = parser.parse_args()
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    model = args.model or ensure_demo_model(progress=lambda phase, share: None)
    figures = measure(args, model)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if figures["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
