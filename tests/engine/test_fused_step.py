"""The fused step of the kernels: same logits as operator by operator, same bits in any batch, no growth."""

import random
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.devices.cpu import CpuDevice
from coldplate_engine.kernels.library import KernelMode, load_library
from coldplate_engine.models.decoder_runner import DecoderRunner
from coldplate_engine.step_timer import StepTimer
from coldplate_engine.weights.convert import QuantizeTo
from support.random_models import LLAMA, VARIANTS, VOCABULARY, save_model

pytestmark = pytest.mark.skipif(load_library() is None, reason="no C++ compiler here")

BLOCK, BLOCKS = 8, 200
FUSED = ("llama-grouped", "llama-biased", "llama-head-dim", "mistral-window", "qwen2-window", "qwen3")


def step(runner: DecoderRunner, *slices: StreamSlice) -> Tensor:
    return runner.execute(StepBatch(list(slices)), StepTimer()).clone()


@cache
def checkpoint(variant: str) -> Path:
    path = Path(mkdtemp(prefix="fused-"))
    kind, options = VARIANTS[variant]
    save_model(kind, options, path)
    return path


@cache
def runner(
    variant: str, kernels: KernelMode = "on", dtype: str = "float32", quantize: QuantizeTo | None = None
) -> DecoderRunner:
    device = CpuDevice(threads=2, kernels=kernels)
    loaded = device.load(checkpoint(variant), dtype, None, lambda _phase, _share: None, quantize)
    loaded.allocate_kv(BLOCKS, BLOCK)
    return loaded


def ids(count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(count)]


def table(stream: int) -> list[int]:
    """16 blocks of each stream's own, in no order."""
    blocks = list(range(BLOCKS))
    random.Random(1).shuffle(blocks)
    return blocks[16 * stream : 16 * (stream + 1)]


@pytest.mark.parametrize("variant", FUSED)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-4), ("bfloat16", 0.15)])
def test_fused_and_by_operators_agree(variant: str, dtype: str, tolerance: float) -> None:
    fused, plain = runner(variant, dtype=dtype), runner(variant, kernels="off", dtype=dtype)
    assert fused._fused is not None
    assert plain._fused is None
    steps = [
        (StreamSlice(0, ids(30, 1), 0, table(0), 2), StreamSlice(1, ids(70, 2), 0, table(1), 0)),
        (
            StreamSlice(0, ids(1, 3), 30, table(0), 1),
            StreamSlice(1, ids(4, 4), 70, table(1), 4),
            StreamSlice(2, ids(19, 5), 0, table(2), 1),
        ),
        (StreamSlice(2, ids(1, 6), 19, table(2), 1), StreamSlice(0, ids(1, 7), 31, table(0), 1)),
    ]
    for slices in steps:
        got, expected = step(fused, *slices), step(plain, *slices)
        assert got.shape == (sum(piece.logit_tokens for piece in slices), VOCABULARY)
        scale = expected.abs().max()
        torch.testing.assert_close(got / scale, expected / scale, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("quantize", [None, "int8"])
@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 100), min_size=1, max_size=6), threads=st.integers(1, 3))
def test_a_decode_gives_the_same_bits_alone_and_in_any_batch(
    quantize: QuantizeTo | None, lengths: list[int], threads: int
) -> None:
    one = runner("llama-grouped", quantize=quantize)
    assert one._library is not None
    decodes: list[StreamSlice] = []
    for stream, length in enumerate(lengths):
        step(one, StreamSlice(stream, ids(length, stream), 0, table(stream), 0))
        decodes.append(StreamSlice(stream, ids(1, 100 + stream), length, table(stream), 1))
    alone = torch.cat([step(one, decode) for decode in decodes])
    one._library.coldplate_set_threads(threads)
    together = step(one, *decodes, StreamSlice(9, ids(20, 50), 0, table(9), 0))
    assert torch.equal(together, alone)


@settings(max_examples=10, deadline=None)
@given(length=st.integers(2, 100), data=st.data())
def test_a_prompt_in_chunks_gives_the_same_bits_in_float32(length: int, data: st.DataObject) -> None:
    one = runner("llama-grouped")
    prompt = ids(length, 1)
    whole = step(one, StreamSlice(0, prompt, 0, table(0), length))
    start = 0
    while start < length:
        count = data.draw(st.integers(1, length - start), label="chunk")
        got = step(one, StreamSlice(1, prompt[start : start + count], start, table(1), count))
        assert torch.equal(got, whole[start : start + count])
        start += count


def test_logits_are_a_view_that_the_next_step_overwrites() -> None:
    one = runner("llama-grouped")
    first = one.execute(StepBatch([StreamSlice(0, [1, 2], 0, table(0), 2)]), StepTimer())
    again = one.execute(StepBatch([StreamSlice(0, [3], 2, table(0), 1)]), StepTimer())
    assert again.data_ptr() == first.data_ptr()


def test_the_parts_of_a_step_are_told() -> None:
    one = runner("llama-grouped")
    assert one._fused is not None
    before = one._fused.seconds()
    step(one, StreamSlice(0, ids(50, 1), 0, table(0), 1))
    after = one._fused.seconds()
    assert all(after[part] > before[part] for part in ("qkv", "attention", "out", "gate_up", "down", "head"))


def test_widths_that_are_no_whole_panels_go_by_operators(tmp_path: Path) -> None:
    save_model("llama", LLAMA | {"intermediate_size": 84}, tmp_path)
    odd = CpuDevice(threads=1, kernels="on").load(tmp_path, "float32", None, lambda _phase, _share: None)
    odd.allocate_kv(4, 16)
    assert odd._fused is None
    assert step(odd, StreamSlice(0, [1, 2, 3], 0, [2], 1)).isfinite().all()


def test_memory_stays_flat_over_many_steps() -> None:
    one = runner("llama-grouped")
    process = psutil.Process()

    def many(steps: int) -> None:
        for number in range(steps):
            step(
                one,
                StreamSlice(0, [number % VOCABULARY], number % 100, table(0), 1),
                StreamSlice(1, ids(number % 30 + 1, number), 0, table(1), 1),
            )

    many(300)
    before = process.memory_info().rss
    many(1500)
    assert process.memory_info().rss - before < 4 << 20
