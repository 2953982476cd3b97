"""What Coldplate costs in front of vLLM: tokens/s through the public gRPC against ``AsyncLLM`` alone.

Both run the same model with the same flags and threads on this machine, in turn, round by round. Needs an environment
with vLLM: ``make vllm-venv``, or ``VLLM_VENV``. Then limits: the share of the speed that a duty of 0.5 leaves, and the
share that their release brings back, beside a control without a limit. The last line is ``ratio N``, the lowest of the
medians at 8 and at 32 streams; exit code 1 when it or the released share is below its floor.
"""

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from overhead import PROMPT_TOKENS, SEED, STREAMS, Alone, Whole

from coldplate_engine.importing.demo_model import ensure_demo_model
from support.client import limit
from support.processes import Stack, clean_environment
from support.vllm import stack_options, vllm_python

RATIO_FLOOR = 0.93
RELEASED_FLOOR = 0.97
_MAX_PROMPT_ID = 200
_KV_TOKENS = 16_384
_DUTY = 0.5


def direct_vllm(model: Path, threads: int) -> Alone:
    """``AsyncLLM``."""
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    flags = [f"--model={model}", "--dtype=float32", "--enforce-eager", f"--max-num-seqs={max(STREAMS)}"]
    flags += ["--block-size=128", f"--num-gpu-blocks-override={_KV_TOKENS // 128 + 1}"]
    flags.append("--kv-cache-memory-bytes=2147483648")
    command = [str(vllm_python()), str(Path(__file__).with_name("direct_vllm.py")), *flags]
    return Alone("vLLM alone", command, clean_environment(**environment))


def compare(direct: Alone, whole: Whole, rounds: int, max_tokens: int, rng: random.Random) -> float:
    """The lowest of the medians over all numbers of streams."""
    ratios: dict[int, list[float]] = {streams: [] for streams in STREAMS}
    for number in range(rounds + 1):
        for streams in STREAMS:
            prompts = [[rng.randrange(_MAX_PROMPT_ID) for _ in range(PROMPT_TOKENS)] for _ in range(streams)]
            alone = direct.run(prompts, max_tokens)
            served = asyncio.run(whole.run(prompts, max_tokens))
            if not served.tokens == alone.tokens == streams * max_tokens:
                raise SystemExit(f"token counts differ: direct {alone.tokens}, served {served.tokens}")
            label = f"round {number}" if number else "warm-up"
            ratio = served.rate / alone.rate
            print(
                f"{label}: {streams:2} streams  AsyncLLM {alone.rate:7.1f} tokens/s  whole path {served.rate:7.1f}"
                f"  ratio {ratio:.3f}",
                flush=True,
            )
            if number:
                ratios[streams].append(ratio)
    for streams, values in ratios.items():
        print(
            f"{streams:2} streams: ratio median {statistics.median(values):.3f} ({min(values):.3f}–{max(values):.3f})"
        )
    return min(map(statistics.median, ratios.values()))


def release(stack: Stack, whole: Whole, rounds: int, max_tokens: int, rng: random.Random) -> float:
    """Speed after a limit was released over the speed before it was set, at 8 streams; the median.

    Beside it the same without a limit, which shows how far the machine's own drift takes such a share from 1.
    """
    prompts = [[rng.randrange(_MAX_PROMPT_ID) for _ in range(PROMPT_TOKENS)] for _ in range(min(STREAMS))]

    def rate() -> float:
        return asyncio.run(whole.run(prompts, max_tokens)).rate

    released: list[float] = []
    control: list[float] = []
    kept: list[float] = []
    rate()
    before = rate()
    for number in range(2 * rounds):
        with_limit = number % 2 == 0
        limit(stack, **({"duty": _DUTY} if with_limit else {}))
        limited = rate()
        limit(stack)
        after, again = rate(), rate()
        unlimited = (before + again) / 2  # on both sides of the limit, as the machine's own speed drifts
        (released if with_limit else control).append(after / unlimited)
        if with_limit:
            kept.append(limited / unlimited)
            print(f"round {number // 2 + 1}: kept {kept[-1]:.3f}  released {released[-1]:.3f}", flush=True)
        before = again
    for what, shares in (
        (f"duty {_DUTY:g} keeps", kept),
        ("released", released),
        ("the same without a limit", control),
    ):
        print(f"{what}: median {statistics.median(shares):.3f} ({min(shares):.3f}–{max(shares):.3f})")
    return statistics.median(released)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the demo model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("overhead", "limits"), help="one of the two parts")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    args = parser.parse_args()
    model = args.model or ensure_demo_model(progress=lambda phase, share: None)
    rng = random.Random(SEED)
    flags = [
        f"threads={args.threads}",
        "dtype=float32",
        f"max-num-seqs={max(STREAMS)}",
        f"kv-cache-tokens={_KV_TOKENS}",
    ]
    met = True
    with contextlib.ExitStack() as processes:
        stack = processes.enter_context(Stack({"demo": model}, **stack_options("vllm", engine_args=flags)))
        whole = Whole(stack.address, stack.pid)
        if args.only != "limits":
            direct = direct_vllm(model, args.threads)
            processes.callback(direct.close)
            ratio = compare(direct, whole, args.rounds, args.max_tokens, rng)
            met = ratio >= RATIO_FLOOR
        if args.only != "overhead":
            met = release(stack, whole, args.rounds, args.max_tokens, rng) >= RELEASED_FLOOR and met
    print(f"floors: ratio {RATIO_FLOOR}, released {RELEASED_FLOOR}")
    if args.only != "limits":
        print(f"ratio {ratio:.3f}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
