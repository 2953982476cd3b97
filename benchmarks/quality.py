"""What fewer bits cost and what they bring on this machine: ``python benchmarks/quality.py``.

Each form of the weights is held against float32 on a fixed text (``benchmarks/data/prose.txt``):

- perplexity over windows of 512 tokens, the first 32 of each not counted, and its change;
- top 1: behind how many tokens of the text the likeliest next token is the one float32 names;
- greedy: how many tokens of answers of 64 are equal before the first that is not, behind which texts differ anyway;
- tokens/s decoded at 1 and 8 streams, the best of some rounds, and the size of the weights in memory.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.devices.cpu import CpuDevice
from coldplate_engine.importing.demo_model import ensure_demo_model, find_demo_gguf
from coldplate_engine.models.decoder_runner import DecoderRunner
from coldplate_engine.runner import ModelError
from coldplate_engine.step_timer import StepTimer
from coldplate_engine.weights import convert

TEXT = Path(__file__).parent / "data" / "prose.txt"
WINDOW, UNCOUNTED, CHUNK = 512, 32, 128
BLOCK = 16
ANSWERS, ANSWER_TOKENS, PROMPT_TOKENS = 8, 64, 32
INT4_GROUPS = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class Form:
    """One way to hold the weights. ``group`` is int4's."""

    name: str
    model: Path
    dtype: str
    quantize: Any = None
    group: int = convert.INT4_GROUP


@dataclass(frozen=True, slots=True)
class Result:
    perplexity: float
    likeliest: torch.Tensor  # [counted tokens]
    answers: list[list[int]]
    tokens_per_s: tuple[float, float]
    weight_mib: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Quality and speed of weights in fewer bits.")
    parser.add_argument("--model", type=Path, help="model folder with plain weights (default: the demo model)")
    parser.add_argument("--gguf", type=Path, help="a GGUF file to show beside it (default: the demo model's own)")
    parser.add_argument("--only", nargs="+", metavar="FORM", help="these forms, such as bfloat16 int4/32")
    parser.add_argument("--threads", type=int, help="compute threads (default: what the machine allows)")
    parser.add_argument("--tokens", type=int, help="so much of the text (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the speed measurement (default: 5)")
    args = parser.parse_args()
    model = args.model or ensure_demo_model(lambda phase, share: None)
    gguf = args.gguf or (None if args.model else find_demo_gguf())
    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(TEXT.read_text()).ids[: args.tokens]
    device = CpuDevice(args.threads)
    print(f"{model.name}, {len(ids)} tokens of text, {device.threads} threads, {device.chip}")
    print("form        perplexity  change   top 1  greedy  1 stream  8 streams  weights")
    exact: Result | None = None
    for form in forms(model, gguf):
        if args.only and form.name not in (*args.only, "float32"):
            continue
        try:
            result = measure(device, form, ids, args.rounds)
        except ModelError as error:
            print(f"{form.name:<10}  {error}")
            continue
        exact = exact or result
        same = (result.likeliest == exact.likeliest).float().mean()
        greedy = sum(map(_common, result.answers, exact.answers)) / (ANSWERS * ANSWER_TOKENS)
        change = result.perplexity / exact.perplexity - 1
        speed = f"{result.tokens_per_s[0]:>8.0f} {result.tokens_per_s[1]:>10.0f}"
        quality = f"{result.perplexity:>10.3f} {change:>+7.2%} {same:>7.1%} {greedy:>7.1%}"
        print(f"{form.name:<10}  {quality} {speed}   {result.weight_mib:>6.0f} MiB", flush=True)


def forms(model: Path, gguf: Path | None) -> Iterator[Form]:
    yield Form("float32", model, "float32")
    yield Form("bfloat16", model, "bfloat16")
    yield Form("int8", model, "auto", "int8")
    yield Form("w8a8", model, "auto", "w8a8")
    for group in INT4_GROUPS:
        yield Form(f"int4/{group}", model, "auto", "int4", group)
    if gguf is not None:
        yield Form("gguf", gguf, "auto")


def measure(device: CpuDevice, form: Form, ids: list[int], rounds: int) -> Result:
    convert.INT4_GROUP = form.group
    runner = device.load(form.model, form.dtype, None, lambda phase, share: None, form.quantize)
    blocks = -(-WINDOW // BLOCK)
    runner.allocate_kv(ANSWERS * blocks, BLOCK)
    loss, likeliest = score(runner, ids)
    answers = [go_on(runner, [ids[at : at + PROMPT_TOKENS]])[0][0] for at in _starts(ids)]
    prompts = [ids[at : at + PROMPT_TOKENS] for at in _starts(ids)]
    speeds = [max(go_on(runner, prompts[:n])[1] for _ in range(rounds)) for n in (1, ANSWERS)]
    return Result(
        perplexity=float(torch.exp(loss)),
        likeliest=likeliest,
        answers=answers,
        tokens_per_s=(speeds[0], speeds[1]),
        weight_mib=runner.facts.weight_bytes / 2**20,
    )


def score(runner: DecoderRunner, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean loss of the counted tokens, and what the model thought likeliest in their places."""
    losses, likeliest = [], []
    table = list(range(-(-WINDOW // BLOCK)))
    for begin in range(0, len(ids) - UNCOUNTED - 1, WINDOW):
        window = ids[begin : begin + WINDOW]
        rows = []
        for at in range(0, len(window), CHUNK):
            piece = window[at : at + CHUNK]
            batch = StepBatch([StreamSlice(0, piece, at, table, len(piece))])
            rows.append(runner.execute(batch, StepTimer()).clone())  # the next step writes over them
        logits = torch.cat(rows)[UNCOUNTED - 1 : len(window) - 1]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(window[UNCOUNTED:]), reduction="none"))
        likeliest.append(logits.argmax(1))
    return torch.cat(losses).mean(), torch.cat(likeliest)


def go_on(runner: DecoderRunner, prompts: list[list[int]]) -> tuple[list[list[int]], float]:
    """Greedy answers to prompts of one length, in one batch, and tokens/s behind the first."""
    blocks = -(-(len(prompts[0]) + ANSWER_TOKENS) // BLOCK)
    tables = [list(range(at * blocks, (at + 1) * blocks)) for at in range(len(prompts))]
    answers: list[list[int]] = [[] for _ in prompts]
    slices = [StreamSlice(at, prompt, 0, tables[at], 1) for at, prompt in enumerate(prompts)]
    began = 0.0
    for step in range(ANSWER_TOKENS):
        tokens = runner.execute(StepBatch(slices), StepTimer()).argmax(1).tolist()
        if step == 0:
            began = time.perf_counter()
        for answer, token in zip(answers, tokens, strict=True):
            answer.append(token)
        at = len(prompts[0]) + step
        slices = [StreamSlice(i, [token], at, tables[i], 1) for i, token in enumerate(tokens)]
    return answers, len(prompts) * (ANSWER_TOKENS - 1) / (time.perf_counter() - began)


def _starts(ids: list[int]) -> list[int]:
    """Where the prompts of the answers begin in the text."""
    return [at * (len(ids) - PROMPT_TOKENS) // ANSWERS for at in range(ANSWERS)]


def _common(one: list[int], other: list[int]) -> int:
    return next((at for at, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), len(one))


if __name__ == "__main__":
    main()
