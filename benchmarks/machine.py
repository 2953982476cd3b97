"""What the machine is and what it can do: the limits that figures are held against."""

import os
import platform
import time
from pathlib import Path

import psutil
import torch

_REPEATS = 7


def describe_machine(threads: int) -> dict[str, object]:
    """Names and sizes for a report; nothing that names the host."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    wanted = (
        "avx2",
        "avx512f",
        "avx512_bf16",
        "avx512_vnni",
        "avx_vnni",
        "amx_bf16",
        "asimd",
        "asimddp",
        "bf16",
        "i8mm",
    )
    return {
        "processor": facts.get("model name", platform.processor() or platform.machine()),
        "instructions": [flag for flag in wanted if flag in flags],
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def machine_limits(threads: int) -> dict[str, float]:
    """Memory read rate (GB/s) and float32 matrix rate (GFLOP/s), the best of a few runs with ``threads`` threads."""
    torch.set_num_threads(threads)
    block = torch.ones(64 << 20)  # 256 MiB: past every cache
    square = torch.ones(1536, 1536)

    def best(work: object) -> float:
        assert callable(work)
        work()
        times = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return min(times)

    return {
        "read_gb_s": block.nbytes / best(block.sum) / 1e9,
        "f32_gflop_s": 2 * 1536**3 / best(lambda: square @ square) / 1e9,
    }
