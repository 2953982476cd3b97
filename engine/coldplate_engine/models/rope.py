"""Rotary position embedding as one complex product.

A checkpoint keeps the two halves of a rotated pair ``head_dim / 2`` apart. ``interleave_heads`` puts them side by side
in the rows of the query and key weights, once; a rotation is then a complex multiplication of neighbours, and the
scores ``q·k`` do not change, as both are permuted alike.
"""

import math
from typing import Any

import torch
from torch import Tensor

from coldplate_engine.weights.config import ModelConfig

_KINDS = ("default", "linear", "llama3")


def interleave_heads(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows ``[heads * head_dim, ...]`` of a query or key projection, or its bias, head by head."""
    halves = rows.view(-1, 2, head_dim // 2, *rows.shape[1:])  # [heads, 2, head_dim / 2, ...]
    return halves.transpose(1, 2).reshape(rows.shape)


def rotation_table(config: ModelConfig, head_dim: int, positions: int) -> Tensor:
    """``e^(i·position·frequency)``, complex64 ``[positions, 1, head_dim / 2]``."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), _frequencies(config, head_dim))
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def rotate(heads: Tensor, rotation: Tensor) -> None:
    """Rotate ``heads [N, heads, head_dim]`` in place by ``rotation [N, 1, head_dim / 2]``."""
    pairs = heads.view(*heads.shape[:2], -1, 2)
    if heads.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(rotation)
    else:
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()).mul_(rotation)))


def _frequencies(config: ModelConfig, head_dim: int) -> Tensor:
    table = _parameters(config)
    kind = table.get("rope_type", table.get("type", "default"))
    if kind not in _KINDS:
        raise config.error("rope_type", f"must be one of {', '.join(_KINDS)}", kind)
    base = config.positive_in(table, "rope_theta", config.positive("rope_theta", 10000.0))
    frequencies = 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if kind == "linear":
        return frequencies / config.positive_in(table, "factor")
    if kind == "llama3":
        return _llama3(frequencies, config, table)
    return frequencies


def _llama3(frequencies: Tensor, config: ModelConfig, table: dict[str, Any]) -> Tensor:
    """Llama 3.1's scaling: long waves are slowed by ``factor``, short ones kept, those between blended."""
    factor = config.positive_in(table, "factor")
    low = config.positive_in(table, "low_freq_factor")
    high = config.positive_in(table, "high_freq_factor")
    context = config.positive_in(table, "original_max_position_embeddings")
    if high <= low:
        raise config.error("high_freq_factor", f"must be above low_freq_factor ({low})", high)
    waves = context * frequencies / (2 * math.pi)  # how many fit the original context
    blend = ((waves - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (blend + (1 - blend) / factor)


def _parameters(config: ModelConfig) -> dict[str, Any]:
    """The table of the newer key ``rope_parameters``, or of the older ``rope_scaling``."""
    for key in ("rope_parameters", "rope_scaling"):
        table = config.fields.get(key)
        if table is not None:
            if not isinstance(table, dict):
                raise config.error(key, "must be an object", table)
            return table
    return {}
