"""Attention of one step over the paged cache.

``StepPlan`` turns a batch into index tensors once a step; ``PagedAttention`` uses them in every layer. Rows (tokens)
stand in the plan's own order: decodes first, shortest context first, then prefill chunks. Decodes of similar length are
attended together, padded to the longest of their group; a group is kept small enough that what it gathers stays in the
processor's cache between the gather and the product.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.models.kv_cache import KvCache

GROUP_BYTES = 3 << 20  # measured: 2 to 4 MiB is fastest where the last-level cache is 32 MiB
_PADDING_FACTOR = 2  # a group's longest context over its shortest


@dataclass(slots=True)
class DecodeGroup:
    """``rows`` one-token slices: blocks ``[rows * n]``, ``lengths [rows, 1]`` with the new one, ``tokens`` gathered."""

    first_row: int
    rows: int
    blocks: Tensor
    lengths: Tensor
    tokens: int
    dtype: torch.dtype
    _masks: dict[int | None, Tensor] = field(default_factory=dict)

    def mask(self, window: int | None) -> Tensor:
        """0 or -inf, ``[rows, 1, 1, tokens]``; made once a step for all layers of one window."""
        if window not in self._masks:
            at = torch.arange(self.tokens)
            hidden = at >= self.lengths  # [rows, tokens]
            if window is not None:
                hidden |= at < self.lengths - window
            self._masks[window] = _additive(hidden, self.dtype)[:, None, None, :]
        return self._masks[window]


@dataclass(slots=True)
class PrefillChunk:
    """``rows`` tokens of one stream after ``start`` cached ones; no blocks where nothing is cached."""

    first_row: int
    rows: int
    start: int
    blocks: Tensor | None
    dtype: torch.dtype
    _masks: dict[int | None, Tensor | None] = field(default_factory=dict)

    def mask(self, window: int | None) -> Tensor | None:
        """0 or -inf, ``[rows, start + rows]``; None where it is plainly causal over the chunk alone."""
        if window not in self._masks:
            end = self.start + self.rows
            mask = None
            if self.blocks is not None or (window is not None and window < end):
                hidden = torch.ones(self.rows, end, dtype=torch.bool).triu_(self.start + 1)
                if window is not None:
                    hidden |= torch.ones_like(hidden).tril_(self.start - window)
                mask = _additive(hidden, self.dtype)
            self._masks[window] = mask
        return self._masks[window]


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


class StepPlan:
    """Everything about a step's batch that is the same in every layer. Raises nothing: the scheduler made the batch."""

    def __init__(self, batch: StepBatch, cache: KvCache) -> None:
        self.cache = cache
        size = cache.block_size
        self._decodes = sorted((s for s in batch.slices if len(s.token_ids) == 1), key=lambda s: s.start)
        self._chunks = [s for s in batch.slices if len(s.token_ids) > 1]
        self.slices = ordered = self._decodes + self._chunks
        last_row: dict[int, int] = {}
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        fresh: list[int] = []
        for piece in ordered:
            end = piece.start + len(piece.token_ids)
            token_ids += piece.token_ids
            positions += range(piece.start, end)
            table = piece.block_table
            slots += [table[p // size] * size + p % size for p in range(piece.start, end)]
            last_row[id(piece)] = len(token_ids) - 1
            partial = end % size
            if partial and end - partial >= piece.start:
                fresh.append(table[end // size])
        self.token_ids = torch.tensor(token_ids)  # [N]
        self.positions = torch.tensor(positions)  # [N]
        self.slots = torch.tensor(slots)  # [N]
        self.fresh_blocks = torch.tensor(fresh, dtype=torch.int64)  # begun but not filled in this step
        wanted = [row for s in batch.slices for row in range(last_row[id(s)] + 1 - s.logit_tokens, last_row[id(s)] + 1)]
        self.logit_rows = torch.tensor(wanted, dtype=torch.int64)

    @cached_property
    def groups(self) -> list[DecodeGroup]:
        """Decodes that are attended together."""
        return self._decode_groups(self._decodes)

    @cached_property
    def chunks(self) -> list[PrefillChunk]:
        """Slices of several tokens."""
        return self._prefill_chunks(self._chunks, len(self._decodes))

    def _decode_groups(self, decodes: list[StreamSlice]) -> list[DecodeGroup]:
        most_blocks = max(1, GROUP_BYTES // self.cache.block_bytes)
        groups: list[DecodeGroup] = []
        first = 0
        while first < len(decodes):
            longest = shortest = self._blocks_of(decodes[first])
            last = first + 1
            while last < len(decodes):
                longest_with = self._blocks_of(decodes[last])
                if longest_with * (last + 1 - first) > most_blocks or longest_with > _PADDING_FACTOR * shortest:
                    break
                longest = longest_with
                last += 1
            groups.append(self._decode_group(decodes[first:last], first, longest))
            first = last
        return groups

    def _decode_group(self, decodes: list[StreamSlice], first_row: int, longest: int) -> DecodeGroup:
        blocks: list[int] = []
        for piece in decodes:
            used = self._blocks_of(piece)
            # A row is padded with its own first block: whatever that holds can harm no other stream.
            blocks += piece.block_table[:used] + piece.block_table[:1] * (longest - used)
        lengths = torch.tensor([piece.start + 1 for piece in decodes]).unsqueeze(1)
        tokens = longest * self.cache.block_size
        return DecodeGroup(first_row, len(decodes), torch.tensor(blocks), lengths, tokens, self.cache.pool.dtype)

    def _prefill_chunks(self, chunks: list[StreamSlice], first_row: int) -> list[PrefillChunk]:
        planned: list[PrefillChunk] = []
        for piece in chunks:
            rows = len(piece.token_ids)
            blocks = torch.tensor(piece.block_table[: self._blocks_of(piece)]) if piece.start > 0 else None
            planned.append(PrefillChunk(first_row, rows, piece.start, blocks, self.cache.pool.dtype))
            first_row += rows
        return planned

    def _blocks_of(self, piece: StreamSlice) -> int:
        return -(-(piece.start + len(piece.token_ids)) // self.cache.block_size)


# Layer, queries, keys_values, scale and window; stores and attends like ``PagedAttention``.
AttentionKernel = Callable[[int, Tensor, Tensor, float, int | None], Tensor]


class PagedAttention:
    """Attention of one step, called once a layer."""

    def __init__(self, plan: StepPlan, kernel: AttentionKernel | None = None) -> None:
        """``kernel`` attends in place of torch, in every layer whose scores are not capped."""
        self.plan = plan
        self._kernel = kernel
        plan.cache.clear(plan.fresh_blocks)

    def __call__(
        self,
        layer: int,
        queries: Tensor,
        keys_values: Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Store the step's keys and values, then attend.

        Shapes: queries ``[N, heads, head_dim]``, keys_values ``[N, 2 * kv_heads, head_dim]``; returns
        ``[N, heads * head_dim]``. ``heads`` is a multiple of ``kv_heads``. A token sees itself and, with a ``window``,
        the ``window - 1`` tokens before it. ``softcap`` bounds scores ``s`` to ``softcap * tanh(s / softcap)``.
        """
        if self._kernel is not None and softcap is None:
            return self._kernel(layer, queries, keys_values, scale, window)
        cache = self.plan.cache
        cache.write(layer, self.plan.slots, keys_values)
        out = torch.empty(queries.shape, dtype=queries.dtype)
        how = _How(scale, window, softcap)
        for group in self.plan.groups:
            rows = slice(group.first_row, group.first_row + group.rows)
            self._decode(layer, group, queries[rows], out[rows], how)
        for chunk in self.plan.chunks:
            rows = slice(chunk.first_row, chunk.first_row + chunk.rows)
            self._prefill(layer, chunk, queries[rows], keys_values[rows], out[rows], how)
        return out.flatten(1)

    def _decode(self, layer: int, group: DecodeGroup, queries: Tensor, out: Tensor, how: "_How") -> None:
        cache = self.plan.cache
        keys, values = cache.gather(layer, group.blocks, group.rows)
        # Query heads that share a key head take the place of query positions.
        q = queries.reshape(group.rows, cache.kv_heads, -1, cache.head_dim)  # [rows, kv_heads, shared, head_dim]
        mask = group.mask(how.window).expand(-1, -1, q.shape[2], -1)
        out.copy_(how.attend(q, keys, values, mask).flatten(1, 2))

    def _prefill(
        self, layer: int, chunk: PrefillChunk, queries: Tensor, keys_values: Tensor, out: Tensor, how: "_How"
    ) -> None:
        cache = self.plan.cache
        q = queries.transpose(0, 1).unsqueeze(0)  # [1, heads, rows, head_dim]
        if chunk.blocks is None:
            kv = keys_values.transpose(0, 1).unsqueeze(0)
            keys, values = kv[:, : cache.kv_heads], kv[:, cache.kv_heads :]
        else:
            keys, values = cache.gather(layer, chunk.blocks, 1)
            end = chunk.start + chunk.rows
            keys, values = keys[:, :, :end], values[:, :, :end]
        out.copy_(how.attend(q, keys, values, chunk.mask(how.window))[0].transpose(0, 1))


@dataclass(frozen=True, slots=True)
class _How:
    """What one layer's attention is, besides its tensors."""

    scale: float
    window: int | None
    softcap: float | None

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """q ``[b, heads, n, d]``, keys and values ``[b, kv_heads, m, d]``; without a mask causal, ``n == m``."""
        shared = q.shape[1] // keys.shape[1]
        if self.softcap is None:
            return F.scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=shared > 1
            )
        if shared > 1:
            keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
        scores = torch.tanh(q @ keys.transpose(2, 3) * (self.scale / self.softcap)).float() * self.softcap
        if mask is None:
            mask = torch.full(scores.shape[2:], float("-inf")).triu_(1)
        return torch.softmax(scores + mask, dim=-1).to(values.dtype) @ values
