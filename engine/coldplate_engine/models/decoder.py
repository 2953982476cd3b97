"""What a decoder is to the engine, and the parts of loading one that families share."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from coldplate_engine.models.attention import PagedAttention
from coldplate_engine.models.layers import Linear, MakeLinear
from coldplate_engine.runner import ModelError
from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.safetensors import SafetensorsDirectory


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
    embedding: Tensor  # [vocabulary, width], kept as stored besides what the linears hold

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: PagedAttention) -> Tensor:
        """``[N]`` ids at ``[N]`` positions to ``[N, width]``, the last norm applied."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """``[rows, width]`` to ``[rows, vocabulary]``."""
        ...


class DecoderFamily(Protocol):
    """Builds a decoder from a checkpoint; ``Llama`` and ``Gpt2`` are two."""

    @staticmethod
    def describe(config: ModelConfig) -> DecoderShape:
        """Read the shape off the config alone. Raises ``ModelError`` naming what cannot be run."""
        ...

    def __call__(
        self, config: ModelConfig, weights: SafetensorsDirectory, linear: MakeLinear, max_positions: int
    ) -> Decoder: ...


def output_head(
    config: ModelConfig, weights: SafetensorsDirectory, linear: MakeLinear, embedding: Tensor, tied: bool
) -> Linear:
    """The output projection: the stored one where there is one, else the embedding if the config ties them.

    A tied checkpoint may carry ``lm_head.weight`` too: an equal copy is not counted, a different one is obeyed.
    """
    name = "lm_head.weight"
    if name in weights:
        head = weights.get(name, tuple(embedding.shape))
        if tied and torch.equal(head, embedding):
            weights.parameter_count -= head.numel()
        return linear(head, None)
    if not tied:
        raise ModelError(
            f"{weights.directory}: tensor {name} is missing, and {config.path.name} has tie_word_embeddings false"
        )
    return linear(embedding, None)
