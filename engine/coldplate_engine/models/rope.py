"""Rotary position embedding as one complex product.

A checkpoint keeps the two halves of a rotated pair ``head_dim / 2`` apart. ``interleave_heads`` puts them side by side
in the rows of the query and key weights, once; a rotation is then a complex multiplication of neighbours, and the
scores ``q·k`` do not change, as both are permuted alike.
"""

import torch
from torch import Tensor

from coldplate_engine.models.rope_scaling import frequencies_and_scale
from coldplate_engine.weights.config import ModelConfig


def interleave_heads(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows ``[heads * head_dim, ...]`` of a query or key projection, or its bias, head by head."""
    halves = rows.view(-1, 2, head_dim // 2, *rows.shape[1:])  # [heads, 2, head_dim / 2, ...]
    return halves.transpose(1, 2).reshape(rows.shape)


def rotation_table(config: ModelConfig, head_dim: int, positions: int, max_positions: int) -> Tensor:
    """``scale · e^(i·position·frequency)``, complex64 ``[positions, 1, head_dim / 2]``.

    ``max_positions``: what the model was made for; ``positions`` may be fewer.
    """
    frequencies, scale = frequencies_and_scale(config, head_dim, positions, max_positions)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.polar(torch.full_like(angles, scale), angles).unsqueeze(1)


def rotate(heads: Tensor, rotation: Tensor) -> None:
    """Rotate ``heads [N, heads, head_dim]`` in place by ``rotation [N, 1, head_dim / 2]``."""
    pairs = heads.view(*heads.shape[:2], -1, 2)
    if heads.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(rotation)
    else:
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()).mul_(rotation)))
