"""Speed of the CPU's linear layers: ``python benchmarks/kernels.py [--threads N]``.

For every kind of weight, on the layer shapes of two models: GB/s of weights read and GFLOP/s (for integer kinds, of
the same multiplications) at 1, 8, 32 and 512 rows, beside the memory read rate and the float32 GEMM rate measured in
the same run. Weights take turns, so that none comes from a cache. Times are the least of the repeats: what the
machine can do.
"""

import argparse
import time
from collections.abc import Callable

import torch

from coldplate_engine.kernels.library import load_library
from coldplate_engine.kernels.linear import KernelLinear
from coldplate_engine.threads import default_threads
from coldplate_engine.weights.quantized import Int4Weight, Int8Weight, Weight

SHAPES = {  # out, in
    "SmolLM2-135M layer": [(960, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)],
    "SmolLM2-135M head": [(49152, 576)],
    "Qwen2.5-0.5B layer": [(1152, 896), (896, 896), (4864, 896), (4864, 896), (896, 4864)],
    "Qwen2.5-0.5B head": [(151936, 896)],
}
KINDS = ("float32", "bfloat16", "float16", "int4 g32", "int4 g128", "int8 g32", "w8a8")
ROWS = (1, 8, 32, 512)
COLD_BYTES = 96 << 20  # beyond the last-level cache of this class of machine
READ_BYTES = 256 << 20
GEMM = 1024


def make_weight(kind: str, n: int, k: int) -> Weight:
    name, _, group = kind.partition(" g")
    if name in ("float32", "bfloat16", "float16"):
        return torch.randn(n, k).to(getattr(torch, name))
    size = int(group) if group else k
    scales = torch.full((n, k // size), 0.01)
    if name == "int4":
        packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
        return Int4Weight(packed, scales, torch.full_like(scales, 8.0), size)
    return Int8Weight(torch.randint(-127, 128, (n, k), dtype=torch.int8), scales, size, name == "w8a8")


def least(call: Callable[[], object], repeats: int) -> float:
    """Seconds of the quickest of the repeats."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def read_rate(repeats: int) -> float:
    """GB/s of torch reading memory, in pieces, so that one piece may escape what else runs."""
    pieces = torch.ones(READ_BYTES // 8, dtype=torch.int64).chunk(32)
    times = [least(piece.max, repeats) for piece in pieces]
    return READ_BYTES / sum(times) / 1e9


def gemm_rate(repeats: int) -> float:
    """GFLOP/s of torch's float32 matrix product."""
    a, b = torch.randn(GEMM, GEMM), torch.randn(GEMM, GEMM)
    return 2 * GEMM**3 / least(lambda: a @ b, repeats * 4) / 1e9


def measure(linears: list[KernelLinear], rows: int, repeats: int) -> float:
    """Seconds of one pass over all: the sum of each one's least, between which all others were read."""
    inputs = {linear.in_features: torch.randn(rows, linear.in_features) for linear in linears}
    best = [float("inf")] * len(linears)
    for _ in range(repeats):
        for index, linear in enumerate(linears):
            best[index] = min(best[index], least(lambda linear=linear: linear(inputs[linear.in_features]), 1))  # type: ignore[misc]
    return sum(best)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the CPU's linear layers.")
    parser.add_argument("--threads", type=int, default=default_threads(), help="default: what this process may use")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=tuple(SHAPES))
    args = parser.parse_args()
    library = load_library("on")
    assert library is not None
    library.coldplate_set_threads(args.threads)
    torch.set_num_threads(args.threads)
    with torch.inference_mode():
        reads, gemm = read_rate(args.repeats), gemm_rate(args.repeats)
        print(f"{args.threads} threads: memory read {reads:.1f} GB/s, float32 GEMM {gemm:.0f} GFLOP/s")
        for name in args.shapes:
            print(f"\n{name}")
            for kind in args.kinds:
                linears: list[KernelLinear] = []
                while sum(linear.weight_bytes for linear in linears) < COLD_BYTES:
                    linears += [KernelLinear(library, make_weight(kind, *shape), None) for shape in SHAPES[name]]
                cells = []
                for rows in args.rows:
                    used = linears if rows < 128 else linears[: len(SHAPES[name])]  # compute bound: a few will do
                    seconds = measure(used, rows, args.repeats if rows < 128 else 3)
                    size = sum(linear.weight_bytes for linear in used)
                    work = 2 * rows * sum(linear.in_features * linear.out_features for linear in used)
                    rate, speed = size / seconds / 1e9, work / seconds / 1e9
                    cells.append(
                        f"{rows} rows {rate:5.1f} GB/s ({rate / reads:4.0%}) {speed:4.0f} G ({speed / gemm:4.0%})"
                    )
                print(f"  {kind:<10}" + " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
