"""Codes of a few bits inside int32 words, and between the layouts of checkpoints and ours."""

from collections.abc import Sequence

import torch
from torch import Tensor

IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)


def unpack_last(words: Tensor, bits: int, order: Sequence[int] | None = None) -> Tensor:
    """int32 ``[rows, n]`` to uint8 codes ``[rows, n * 32 / bits]``.

    The code at bits ``i * bits`` of a word is its column ``order[i]``, by default ``i``.
    """
    count, mask = 32 // bits, (1 << bits) - 1
    codes = torch.empty(*words.shape, count, dtype=torch.uint8)
    for at in range(count):
        codes[..., at if order is None else order[at]] = (words >> (at * bits)) & mask
    return codes.view(words.shape[0], -1)


def unpack_first(words: Tensor, bits: int) -> Tensor:
    """int32 ``[n, columns]`` to uint8 codes ``[n * 32 / bits, columns]``, low bits first."""
    return unpack_last(words.t().contiguous(), bits).t()


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8 codes ``[out, in]`` of 0 … 15 to ``Int4Weight.packed``, ``[out, in / 2]``."""
    return (codes[:, 0::2] | codes[:, 1::2] << 4).contiguous()
