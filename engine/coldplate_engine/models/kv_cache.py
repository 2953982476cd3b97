"""The paged KV cache: one pool of fixed blocks, allocated once."""

import torch
from torch import Tensor


class KvCache:
    """Keys and values of all layers.

    ``pool`` is ``[layers, num_blocks, block_size, 2 * kv_heads, head_dim]``: a token's key heads, then its value heads,
    so that one copy writes both and one gather reads both. The scratch holds the blocks gathered for one attention
    call; it is as large as the largest call may need and serves every layer of every step.
    """

    def __init__(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        self.num_blocks, self.block_size, self.kv_heads, self.head_dim = num_blocks, block_size, kv_heads, head_dim
        self.pool = torch.zeros(layers, num_blocks, block_size, 2 * kv_heads, head_dim, dtype=dtype)
        self._blocks = self.pool.view(layers, num_blocks, -1)
        self._slots = self.pool.view(layers, num_blocks * block_size, 2 * kv_heads, head_dim)
        self.block_bytes = self._blocks[0, 0].nbytes
        self._scratch = torch.empty(0, self._blocks.shape[2], dtype=dtype)

    def reserve_scratch(self, blocks: int) -> None:
        """Let one gather take up to ``blocks`` blocks."""
        self._scratch = torch.empty(blocks, self._blocks.shape[2], dtype=self.pool.dtype)

    def clear(self, blocks: Tensor) -> None:
        """Zero ``blocks [n]`` in every layer: what a former stream left there, a NaN say, must not reach the next."""
        self._blocks.index_fill_(1, blocks, 0)

    def write(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """Store ``keys_values [N, 2 * kv_heads, head_dim]`` at ``slots [N]`` (block * block_size + offset)."""
        self._slots[layer].index_copy_(0, slots, keys_values)

    def gather(self, layer: int, blocks: Tensor, streams: int) -> tuple[Tensor, Tensor]:
        """Keys and values of ``blocks [streams * n]``, each ``[streams, kv_heads, n * block_size, head_dim]``.

        They are views of the scratch: the next gather overwrites them.
        """
        taken = torch.index_select(self._blocks[layer], 0, blocks, out=self._scratch[: len(blocks)])
        tokens = taken.view(streams, -1, 2 * self.kv_heads, self.head_dim).transpose(1, 2)
        return tokens[:, : self.kv_heads], tokens[:, self.kv_heads :]

    def read_blocks(self, blocks: Tensor) -> Tensor:
        """A copy of ``blocks [n]`` over all layers: uint8 ``[n, bytes of one]``."""
        taken = self._blocks.index_select(1, blocks).transpose(0, 1)
        return taken.reshape(len(blocks), -1).view(torch.uint8)

    def write_blocks(self, blocks: Tensor, data: Tensor) -> None:
        """The reverse of ``read_blocks``."""
        layers, _, width = self._blocks.shape
        taken = data.view(self.pool.dtype).view(len(blocks), layers, width)
        self._blocks.index_copy_(1, blocks, taken.transpose(0, 1))
