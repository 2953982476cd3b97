"""The kernels' attention and fused step against plain references."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coldplate_engine.batch import StreamSlice
from coldplate_engine.kernels.argmax import argmax
from coldplate_engine.kernels.library import load_library
from coldplate_engine.kernels.step import NativeAttention
from coldplate_engine.models.kv_cache import KvCache
from coldplate_engine.models.step_arrays import StepArrays

LIBRARY = load_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ compiler here")

LAYER, SCALE = 1, 0.3
TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 3e-5, torch.float16: 3e-5}  # cached keys are rounded in both


@dataclass(frozen=True)
class Shape:
    """One draw of all that attention depends on; ``parts`` are (tokens cached, tokens new) of each stream."""

    parts: tuple[tuple[int, int], ...]
    kv_heads: int
    shared: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    window: int | None
    threads: int

    @property
    def heads(self) -> int:
        return self.kv_heads * self.shared


shapes = st.builds(
    Shape,
    parts=st.lists(
        st.tuples(st.sampled_from([0, 1, 6, 127, 128, 300, 520]), st.sampled_from([1, 1, 1, 2, 7, 16, 17, 70])),
        min_size=1,
        max_size=4,
    ).map(tuple),
    kv_heads=st.integers(1, 3),
    shared=st.sampled_from([1, 2, 3, 5, 7]),
    head_dim=st.sampled_from([8, 20, 64, 80]),
    block_size=st.sampled_from([1, 4, 16, 24, 200]),
    dtype=st.sampled_from(list(TOLERANCE)),
    window=st.sampled_from([None, None, 1, 9, 130, 1000]),
    threads=st.integers(1, 3),
)


class Case:
    """Random streams of a shape in a cache of which everything else is NaN."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.shape = shape
        size, kv_heads, head_dim = shape.block_size, shape.kv_heads, shape.head_dim
        needed = [-(-(start + new) // size) for start, new in shape.parts]
        free = list(range(sum(needed) + 2))
        random.Random(seed).shuffle(free)
        self.cache = KvCache(2, len(free), size, kv_heads, head_dim, shape.dtype)
        self.cache.pool.fill_(float("nan"))
        self.slices: list[StreamSlice] = []
        self.keys: list[Tensor] = []  # [tokens, kv_heads, head_dim], as the cache rounds them
        self.values: list[Tensor] = []
        rows = sum(new for _, new in shape.parts)
        self.qkv = torch.randn(rows, shape.heads + 2 * kv_heads, head_dim)
        row = 0
        for stream, ((start, new), blocks) in enumerate(zip(shape.parts, needed, strict=True)):
            table = [free.pop() for _ in range(blocks)]
            self.slices.append(StreamSlice(stream, [0] * new, start, table, 1))
            cached = torch.randn(start, 2 * kv_heads, head_dim)
            slots = torch.tensor([table[p // size] * size + p % size for p in range(start)], dtype=torch.int64)
            self.cache.write(LAYER, slots, cached)
            fresh = self.qkv[row : row + new, shape.heads :]
            both = torch.cat([cached, fresh]).to(shape.dtype).float()
            self.keys.append(both[:, :kv_heads])
            self.values.append(both[:, kv_heads:])
            row += new

    def attend(self, only: int | None = None) -> Tensor:
        """``[rows, heads * head_dim]`` of all slices, or of one by itself."""
        assert LIBRARY is not None
        shape = self.shape
        LIBRARY.coldplate_set_threads(shape.threads)
        kernel = NativeAttention(LIBRARY, self.cache, shape.heads, SCALE)
        picked = self.slices if only is None else [self.slices[only]]
        qkv = self.qkv
        if only is not None:
            first = sum(new for _, new in shape.parts[:only])
            qkv = qkv[first : first + shape.parts[only][1]]
        arrays = StepArrays(picked, shape.block_size)
        kernel.plan(arrays)
        return kernel(LAYER, qkv[:, : shape.heads], qkv[:, shape.heads :], shape.window)

    def expected(self) -> Tensor:
        shape = self.shape
        rows: list[Tensor] = []
        row = 0
        for (start, new), keys, values in zip(shape.parts, self.keys, self.values, strict=True):
            queries = self.qkv[row : row + new, : shape.heads].view(new, shape.kv_heads, shape.shared, -1).double()
            scores = torch.einsum("nkgd,tkd->nkgt", queries, keys.double()) * SCALE
            at = torch.arange(start, start + new).unsqueeze(1)
            seen = torch.arange(start + new).unsqueeze(0)
            hidden = seen > at
            if shape.window is not None:
                hidden |= at - seen >= shape.window
            scores.masked_fill_(hidden[:, None, None, :], float("-inf"))
            rows.append(torch.einsum("nkgt,tkd->nkgd", scores.softmax(-1), values.double()).flatten(1))
            row += new
        return torch.cat(rows).float()


@settings(max_examples=60, deadline=None)
@given(shape=shapes)
def test_attention_is_right_whatever_the_batch_and_the_layout(shape: Shape) -> None:
    case = Case(shape)
    torch.testing.assert_close(case.attend(), case.expected(), atol=TOLERANCE[shape.dtype], rtol=1e-4)


@settings(max_examples=40, deadline=None)
@given(shape=shapes)
def test_a_stream_attends_to_the_same_bits_alone_and_in_a_batch(shape: Shape) -> None:
    together = Case(shape).attend()
    first = 0
    for index, (_, new) in enumerate(shape.parts):
        assert torch.equal(Case(shape).attend(only=index), together[first : first + new])
        first += new


@settings(max_examples=20, deadline=None)
@given(length=st.integers(2, 400), shared=st.sampled_from([1, 3]), threads=st.integers(1, 3), data=st.data())
def test_a_prompt_in_chunks_attends_to_the_same_bits_as_in_one(
    length: int, shared: int, threads: int, data: st.DataObject
) -> None:
    def shape(start: int, new: int) -> Shape:
        return Shape(((start, new),), 2, shared, 16, 16, torch.float32, None, threads)

    whole = Case(shape(0, length))
    expected = whole.attend()
    chunked = Case(shape(0, length))
    start = 0
    while start < length:
        new = data.draw(st.integers(1, length - start), label="chunk")
        chunked.shape = shape(start, new)
        chunked.slices = [StreamSlice(0, [0] * new, start, whole.slices[0].block_table, 1)]
        chunked.qkv = whole.qkv[start : start + new]
        assert torch.equal(chunked.attend(), expected[start : start + new])
        start += new


def test_a_stream_of_nan_harms_no_other() -> None:
    case = Case(Shape(((100, 1), (100, 1)), 2, 3, 64, 16, torch.bfloat16, None, 2))
    case.qkv[0] = float("nan")
    got = case.attend()
    assert got[0].isnan().all()
    torch.testing.assert_close(got[1:], case.expected()[1:], atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_queries_of_any_dtype_and_stride(dtype: torch.dtype) -> None:
    case = Case(Shape(((40, 3),), 2, 2, 16, 16, torch.float32, None, 1))
    expected = case.attend()
    assert LIBRARY is not None
    kernel = NativeAttention(LIBRARY, case.cache, 4, SCALE)
    arrays = StepArrays(case.slices, 16)
    kernel.plan(arrays)
    queries = case.qkv[:, :4].transpose(1, 2).contiguous().transpose(1, 2).to(dtype)
    got = kernel(LAYER, queries, case.qkv[:, 4:], None)
    assert got.dtype == dtype
    assert torch.nn.functional.cosine_similarity(got.float(), expected).min() > 0.999


def _rows(count: int) -> Tensor:
    torch.manual_seed(count)
    return torch.randn(5, count)


def _with(change: Callable[[Tensor], None]) -> Tensor:
    rows = _rows(3000)
    change(rows[2])
    return rows


def _tie(row: Tensor) -> None:
    row[[700, 1500, 2900]] = 9.0


def _infinite(row: Tensor) -> None:
    row[1700] = float("inf")


def _hopeless(row: Tensor) -> None:
    row.fill_(float("-inf"))


@pytest.mark.parametrize(
    "logits",
    [_rows(1), _rows(7), _rows(97), _rows(1024), _rows(49152), _with(_tie), _with(_infinite), _with(_hopeless)],
)
def test_argmax_is_the_first_greatest(logits: Tensor) -> None:
    assert LIBRARY is not None
    ids, best = argmax(LIBRARY, logits)
    expected = logits.max(dim=1).values
    assert torch.equal(best, expected)
    assert ids.tolist() == [row.tolist().index(value) for row, value in zip(logits, expected.tolist(), strict=True)]


@pytest.mark.parametrize("at", [0, 5, 1023, 1024, 2999])
@pytest.mark.parametrize("infinite", [False, True])
def test_argmax_finds_nan(at: int, infinite: bool) -> None:
    assert LIBRARY is not None
    logits = _rows(3000)
    if infinite:
        logits[2, 1500] = float("inf")
    logits[2, at] = float("nan")
    ids, best = argmax(LIBRARY, logits)
    assert best.isnan().tolist() == [False, False, True, False, False]
    assert ids[2] == at
