"""The paged KV cache: one pool of fixed blocks, allocated once. Their layout is known here and in csrc/attention."""

import torch
from torch import Tensor

_SLACK = 16  # elements behind the last block: the kernels load 16 at a time


class KvCache:
    """Keys and values of all layers.

    ``pool`` is ``[num_blocks, layers, kv_heads, 2, head_dim * block_size]``: of one head of one block the keys,
    transposed (``[head_dim, block_size]``), then the values (``[block_size, head_dim]``), so that both products of
    attention read rows of neighbours and a block of all layers is one run of memory. The scratch holds what one
    attention call gathers on the path without kernels; it serves every layer of every step.
    """

    def __init__(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        self.layers, self.num_blocks, self.block_size = layers, num_blocks, block_size
        self.kv_heads, self.head_dim = kv_heads, head_dim
        shape = (num_blocks, layers, kv_heads, 2, head_dim * block_size)
        self._memory = torch.zeros(num_blocks * layers * kv_heads * 2 * head_dim * block_size + _SLACK, dtype=dtype)
        self.pool = self._memory[:-_SLACK].view(shape)
        self.block_bytes = self.pool[0, 0].nbytes  # of one layer
        self._scratch = torch.empty(0, *shape[2:], dtype=dtype)

    def reserve_scratch(self, blocks: int) -> None:
        """Let one gather take up to ``blocks`` blocks."""
        self._scratch = torch.empty(blocks, *self.pool.shape[2:], dtype=self.pool.dtype)

    def clear(self, blocks: Tensor) -> None:
        """Zero ``blocks [n]`` in every layer: what a former stream left there, a NaN say, must not reach the next.

        The kernels never look beyond a stream's end and need none of this.
        """
        self.pool.index_fill_(0, blocks, 0)

    def write(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """Store ``keys_values [N, 2 * kv_heads, head_dim]`` at ``slots [N]`` (block * block_size + offset)."""
        blocks, offsets = slots // self.block_size, slots % self.block_size
        pool = self.pool[:, layer]
        heads = pool.shape[:2]
        keys = pool[:, :, 0].view(*heads, self.head_dim, self.block_size)  # [blocks, kv_heads, head_dim, block_size]
        values = pool[:, :, 1].view(*heads, self.block_size, self.head_dim)
        keys[blocks, :, :, offsets] = keys_values[:, : self.kv_heads].to(pool.dtype)
        values[blocks, :, offsets] = keys_values[:, self.kv_heads :].to(pool.dtype)

    def gather(self, layer: int, blocks: Tensor, streams: int) -> tuple[Tensor, Tensor]:
        """Keys and values of ``blocks [streams * n]``, each ``[streams, kv_heads, n * block_size, head_dim]``."""
        taken = torch.index_select(self.pool[:, layer], 0, blocks, out=self._scratch[: len(blocks)])
        taken = taken.view(streams, -1, *taken.shape[1:])  # [streams, n, kv_heads, 2, head_dim * block_size]
        heads = taken.shape[:3]
        keys = taken[:, :, :, 0].view(*heads, self.head_dim, self.block_size).permute(0, 2, 1, 4, 3)
        values = taken[:, :, :, 1].view(*heads, self.block_size, self.head_dim).transpose(1, 2)
        return keys.flatten(2, 3), values.flatten(2, 3)

    def read_blocks(self, blocks: Tensor) -> Tensor:
        """A copy of ``blocks [n]`` in all layers, uint8 ``[n, bytes]``."""
        return self.pool[blocks].flatten(1).view(torch.uint8)

    def write_blocks(self, blocks: Tensor, data: Tensor) -> None:
        """Put what ``read_blocks`` gave at ``blocks [n]``."""
        self.pool[blocks] = data.view(self.pool.dtype).view(-1, *self.pool.shape[1:])
