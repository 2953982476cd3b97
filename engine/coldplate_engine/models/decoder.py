"""What a decoder is to the engine, and the parts of loading one that families share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, cat

from coldplate_engine.models.attention import PagedAttention
from coldplate_engine.models.layers import JoinedLinear, Linear, MakeLinear
from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.quantized import Weight, join_rows
from coldplate_engine.weights.reader import CheckpointReader


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """What the cache and the scheduler need to know of a decoder."""

    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int


class Decoder(Protocol):
    """A decoder-only model. Its weights are on one device; it keeps no state between steps."""

    shape: DecoderShape

    @property
    def embedding(self) -> Tensor:
        """``[vocabulary, width]``."""
        ...

    @property
    def own_bytes(self) -> int:
        """What is kept besides the weights of the linears."""
        ...

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: PagedAttention) -> Tensor:
        """``[N]`` ids at ``[N]`` positions to ``[N, width]``, the last norm applied."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """``[rows, width]`` to ``[rows, vocabulary]``."""
        ...


class DecoderFamily(Protocol):
    """Builds a decoder from a checkpoint; ``Gpt2`` and the families of ``DenseDecoder`` are some."""

    def describe(self, config: ModelConfig) -> DecoderShape:
        """Read the shape off the config alone. Raises ``ModelError`` naming what cannot be run."""
        ...

    def __call__(
        self, config: ModelConfig, weights: CheckpointReader, linear: MakeLinear, max_positions: int
    ) -> Decoder: ...


def joined_linear(linear: MakeLinear, parts: Sequence[tuple[Weight, Tensor | None]]) -> Linear:
    """One linear of several weights and biases of the same input, outputs in their order.

    Parts of different kinds (a checkpoint may keep some in more bits) stay linears of their own behind one face.
    """
    try:
        weight = join_rows([weight for weight, _ in parts])
    except ValueError:
        return JoinedLinear([linear(weight, bias) for weight, bias in parts])
    biases = [bias for _, bias in parts if bias is not None]
    if biases and len(biases) != len(parts):
        raise ValueError("either all parts have a bias or none")
    return linear(weight, cat(biases) if biases else None)
