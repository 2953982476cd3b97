"""Windows and capped scores of the paged attention against a plain sum over all pairs."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.models.attention import PagedAttention, StepPlan
from coldplate_engine.models.kv_cache import KvCache

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 8, 4


def plain(q: Tensor, kv: Tensor, scale: float, window: int | None, softcap: float | None) -> Tensor:
    """q ``[T, HEADS, DIM]``, kv ``[T, 2 * KV_HEADS, DIM]`` to ``[T, HEADS * DIM]``, one pair at a time."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    for token, head in itertools.product(range(len(q)), range(HEADS)):
        first = 0 if window is None else max(0, token + 1 - window)
        keys = kv[first : token + 1, head * KV_HEADS // HEADS].double()
        values = kv[first : token + 1, KV_HEADS + head * KV_HEADS // HEADS].double()
        scores = keys @ q[token, head].double() * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        out[token, head] = torch.softmax(scores, 0) @ values
    return out.flatten(1).float()


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    window=st.none() | st.integers(1, 30),
    softcap=st.none() | st.floats(0.5, 20),
)
@pytest.mark.parametrize("seed", [0])
def test_two_streams_in_chunks(seed: int, sizes: list[int], window: int | None, softcap: float | None) -> None:
    torch.manual_seed(seed)
    total, scale = sum(sizes), 0.7
    queries = [torch.randn(total, HEADS, DIM) * 3 for _ in range(2)]
    keys_values = [torch.randn(total, 2 * KV_HEADS, DIM) for _ in range(2)]
    blocks = -(-total // BLOCK)
    cache = KvCache(1, 2 * blocks, BLOCK, KV_HEADS, DIM, torch.float32)
    cache.reserve_scratch(2 * blocks)
    tables = [list(range(blocks))[::-1], list(range(blocks, 2 * blocks))]
    got: list[list[Tensor]] = [[], []]
    start = 0
    for size in sizes:
        slices = [StreamSlice(s, [0] * size, start, tables[s], 0) for s in range(2)]
        at = slice(start, start + size)
        attention = PagedAttention(StepPlan(StepBatch(slices), cache))
        q, kv = torch.cat([q[at] for q in queries]), torch.cat([kv[at] for kv in keys_values])
        for stream, part in enumerate(torch.split(attention(0, q, kv, scale, window, softcap), size)):
            got[stream].append(part)
        start += size
    for stream in range(2):
        wanted = plain(queries[stream], keys_values[stream], scale, window, softcap)
        torch.testing.assert_close(torch.cat(got[stream]), wanted, atol=1e-5, rtol=1e-4)
