"""Where a cold start's time goes, and whether reading keeps up with the disk: ``python benchmarks/cold_start.py``.

Makes a sharded checkpoint of random bfloat16 weights and reads it with the page cache dropped, in turns: the bare disk
(O_DIRECT, the better of one thread and as many as the loader has), the loader's reading alone, and a whole load as a
worker does it. The last line is ``ratio N``: the loader's reading rate through the disk's, median of the rounds; exit
code 1 below ``--floor``.
"""

import argparse
import json
import mmap
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from coldplate_engine.devices.cpu import CpuDevice
from coldplate_engine.runner import ModelFacts
from coldplate_engine.weights.read_ahead import PIECE_BYTES, THREADS, likely_order
from coldplate_engine.weights.safetensors import INDEX_FILE, SafetensorsDirectory

WIDTH, INNER, HEADS, KV_HEADS, VOCABULARY = 2048, 5632, 16, 4, 32000
LAYERS_A_SHARD = 8


def main() -> None:
    parser = argparse.ArgumentParser(description="Cold start: the loader's reading against the bare disk.")
    parser.add_argument("--gib", type=float, default=3.0, help="size of the checkpoint (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, interleaved (default: 5)")
    parser.add_argument("--folder", type=Path, help="where to make it, on the disk to measure (default: temporary)")
    parser.add_argument("--dtype", default="auto", help="of the whole load (default: auto)")
    parser.add_argument("--quantize", choices=("int4", "int8", "w8a8"), help="of the whole load")
    parser.add_argument("--floor", type=float, default=0.8, help="least ratio (default: 0.8)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coldplate-cold-", dir=args.folder) as folder:
        model = Path(folder)
        files = make_checkpoint(model, args.gib)
        size = sum(file.stat().st_size for file in files)
        print(f"{len(files)} files, {size / 2**30:.2f} GiB")
        print("round  disk MB/s  loader MB/s  warm MB/s  ratio   load s  where it went")
        ratios = []
        for at in range(args.rounds):
            disk = 0.0
            for threads in (1, THREADS):
                drop_caches(files)
                disk = max(disk, direct_rate(files, threads))
            drop_caches(files)
            loader = loader_rate(model)
            warm = loader_rate(model)
            drop_caches(files)
            began = time.perf_counter()
            facts = load(model, args.dtype, args.quantize)
            whole = time.perf_counter() - began
            ratios.append(loader / disk)
            phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in facts.load_phases)
            rates = f"{disk:>10.0f} {loader:>12.0f} {warm:>10.0f} {ratios[-1]:>6.2f}"
            print(f"{at + 1:>5} {rates} {whole:>8.2f}  {phases}", flush=True)
    ratio = statistics.median(ratios)
    print(f"ratio {ratio:.3f}")
    sys.exit(ratio < args.floor)


def load(model: Path, dtype: str, quantize: Any) -> ModelFacts:
    return CpuDevice().load(model, dtype, None, lambda phase, share: None, quantize).facts


def make_checkpoint(folder: Path, gib: float) -> list[Path]:
    """Random weights of a Llama with as many layers as the size asks for; its files."""
    kv_width = WIDTH * KV_HEADS // HEADS
    shapes = {
        "self_attn.q_proj": (WIDTH, WIDTH),
        "self_attn.k_proj": (kv_width, WIDTH),
        "self_attn.v_proj": (kv_width, WIDTH),
        "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }
    layer_bytes = 2 * sum(rows * columns for rows, columns in shapes.values())
    layers = max(1, round((gib * 2**30 - 4 * VOCABULARY * WIDTH) / layer_bytes))
    names: dict[str, str] = {}
    count = -(-layers // LAYERS_A_SHARD)
    for at in range(count):
        tensors: dict[str, torch.Tensor] = {}
        for layer in range(at * LAYERS_A_SHARD, min(layers, (at + 1) * LAYERS_A_SHARD)):
            prefix = f"model.layers.{layer}"
            tensors |= {f"{prefix}.{name}.weight": _random(*shape) for name, shape in shapes.items()}
            for norm in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"{prefix}.{norm}.weight"] = torch.ones(WIDTH, dtype=torch.bfloat16)
        if at == 0:
            tensors["model.embed_tokens.weight"] = _random(VOCABULARY, WIDTH)
            tensors["lm_head.weight"] = _random(VOCABULARY, WIDTH)
            tensors["model.norm.weight"] = torch.ones(WIDTH, dtype=torch.bfloat16)
        file = f"model-{at + 1:05d}-of-{count:05d}.safetensors"
        save_file(tensors, folder / file)
        names |= dict.fromkeys(tensors, file)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return sorted({folder / name for name in names.values()})


def _random(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns).mul_(0.02).bfloat16()


def drop_caches(files: list[Path]) -> None:
    """Put the files out of the page cache; they must be on the disk for that."""
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def direct_rate(files: list[Path], threads: int) -> float:
    """MB/s of the bare disk, past the page cache."""
    buffers = [mmap.mmap(-1, PIECE_BYTES) for _ in range(threads)]
    opened = [(os.open(path, os.O_RDONLY | os.O_DIRECT), path.stat().st_size) for path in files]
    pieces = [(file, at) for file, size in opened for at in range(0, size, PIECE_BYTES)]

    def read(worker: int) -> int:
        return sum(os.preadv(file, [buffers[worker]], at) for file, at in pieces[worker::threads])

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(read, range(threads)))
    seconds = time.perf_counter() - began
    for file, _ in opened:
        os.close(file)
    return done / 1e6 / seconds


def loader_rate(model: Path) -> float:
    """MB/s of the loader's reading, every tensor in its own memory, from the first read to the last."""
    source = SafetensorsDirectory(model, lambda phase, share: None)
    began = time.perf_counter()
    try:
        for name in sorted(source.tensors, key=likely_order):
            source.read(name)
        return source.clock.bytes / 1e6 / (time.perf_counter() - began)
    finally:
        source.close()


if __name__ == "__main__":
    main()
