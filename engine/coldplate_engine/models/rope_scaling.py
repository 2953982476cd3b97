"""Frequencies of rotary positions: the plain ones and the ways checkpoints stretch them to longer contexts.

The formulas are those of the published methods, with transformers' defaults, so that a checkpoint means the same here.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coldplate_engine.weights.config import ModelConfig


class RopeTable:
    """The rope keys of a config: of the newer ``rope_parameters``, or of the older ``rope_scaling``."""

    def __init__(self, config: ModelConfig, head_dim: int, positions: int, max_positions: int) -> None:
        self.config, self.head_dim = config, head_dim
        self.positions, self.max_positions = positions, max_positions
        key = next((key for key in ("rope_parameters", "rope_scaling") if config.fields.get(key) is not None), None)
        self.fields: dict[str, Any] = config.fields[key] if key else {}
        if not isinstance(self.fields, dict):
            raise config.error(str(key), "must be an object", self.fields)
        for name, value in self.fields.items():
            if isinstance(value, dict):
                raise config.error(f"{key}.{name}", "is supported for all layers alike only", value)
        for name in ("mrope_section", "partial_rotary_factor"):
            value = self.fields.get(name, config.fields.get(name))
            if value not in (None, 1.0):
                raise config.error(name, "is not supported for this architecture", value)
        self.kind = self.fields.get("rope_type", self.fields.get("type", "default"))
        self.base = self.number("rope_theta", config.positive("rope_theta", 10000.0))

    def number(self, key: str, default: float | None = None) -> float:
        return self.config.positive_in(self.fields, key, default)

    def original_context(self) -> float:
        """Positions of the first training, which a scaling starts from; a key beside the table has the last word."""
        key = "original_max_position_embeddings"
        return self.config.positive(key, self.number(key, float(self.max_positions)))

    def plain(self) -> Tensor:
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        return 1.0 / self.base**exponents


def frequencies_and_scale(
    config: ModelConfig, head_dim: int, positions: int, max_positions: int
) -> tuple[Tensor, float]:
    """Radians a position, float32 ``[head_dim / 2]``, and the factor on the rotated vectors.

    Raises ``ModelError`` naming the key for kinds and values that cannot be run.
    """
    table = RopeTable(config, head_dim, positions, max_positions)
    if table.kind not in SCALINGS:
        raise config.error("rope_type", f"must be one of {', '.join(SCALINGS)}", table.kind)
    return SCALINGS[table.kind](table)


def _default(table: RopeTable) -> tuple[Tensor, float]:
    return table.plain(), 1.0


def _linear(table: RopeTable) -> tuple[Tensor, float]:
    return table.plain() / table.number("factor"), 1.0


def _dynamic(table: RopeTable) -> tuple[Tensor, float]:
    """NTK scaling that begins behind ``max_position_embeddings``, which no stream here goes beyond."""
    table.number("factor")
    return table.plain(), 1.0


def _llama3(table: RopeTable) -> tuple[Tensor, float]:
    """Llama 3.1's scaling: long waves are slowed by ``factor``, short ones kept, those between blended."""
    factor = table.number("factor")
    low, high = table.number("low_freq_factor"), table.number("high_freq_factor")
    if high <= low:
        raise table.config.error("high_freq_factor", f"must be above low_freq_factor ({low})", high)
    frequencies = table.plain()
    waves = table.original_context() * frequencies / (2 * math.pi)  # how many fit the original context
    blend = ((waves - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (blend + (1 - blend) / factor), 1.0


def _yarn(table: RopeTable) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071): waves that turn often in the original context are kept, the others slowed."""
    context = table.original_context()
    factor = table.number("factor", table.max_positions / context)
    fast, slow = table.number("beta_fast", 32.0), table.number("beta_slow", 1.0)

    def dimension(turns: float) -> float:
        """Where a wave turns ``turns`` times over the original context."""
        return table.head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(table.base))

    low, high = dimension(fast), dimension(slow)
    if table.fields.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, table.head_dim - 1)
    ramp = (torch.arange(table.head_dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    kept = 1 - ramp.clamp(0, 1)
    frequencies = table.plain()
    return frequencies / factor * (1 - kept) + frequencies * kept, _yarn_scale(table, factor)


def _yarn_scale(table: RopeTable, factor: float) -> float:
    if table.fields.get("attention_factor") is not None:
        return table.number("attention_factor")

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale, all_dim = table.fields.get("mscale"), table.fields.get("mscale_all_dim")
    if mscale and all_dim:
        return magnitude(table.number("mscale")) / magnitude(table.number("mscale_all_dim"))
    return magnitude(1.0)


def _longrope(table: RopeTable) -> tuple[Tensor, float]:
    """LongRoPE (arXiv 2402.13753) within the original context.

    Beyond it, every position of a stream would turn differently from the moment the stream grows past it, which no
    cache of rotated keys can follow.
    """
    context = table.original_context()
    if table.positions > context:
        raise table.config.error(
            "rope_type", f"longrope is supported up to {context:.0f} positions: set --max-model-len", "longrope"
        )
    short = table.fields.get("short_factor")
    if not isinstance(short, list) or len(short) != table.head_dim // 2:
        raise table.config.error("short_factor", f"must list {table.head_dim // 2} numbers", short)
    factor = table.number("factor", table.max_positions / context)
    scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(context))
    return table.plain() / torch.tensor(short, dtype=torch.float32), table.number("attention_factor", scale)


SCALINGS: dict[str, Callable[[RopeTable], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
