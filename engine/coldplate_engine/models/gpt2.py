"""GPT-2: learned positions, one fused query-key-value projection, layer norms with shifts."""

import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor

from coldplate_engine.models.attention import PagedAttention
from coldplate_engine.models.decoder import DecoderShape
from coldplate_engine.models.layers import ACTIVATIONS, LayerNorm, Linear, MakeLinear
from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.reader import CheckpointReader


class Gpt2:
    """``GPT2LMHeadModel``. Older checkpoints lack the prefix ``transformer.`` in their tensor names."""

    def __init__(self, config: ModelConfig, weights: CheckpointReader, linear: MakeLinear, max_positions: int) -> None:
        self.shape = self.describe(config)
        vocabulary, width = self.shape.vocabulary, config.count("n_embd")
        prefix = "" if "wte.weight" in weights else "transformer."
        self.embedding = weights.get(f"{prefix}wte.weight", (vocabulary, width))
        self.positions = weights.get(f"{prefix}wpe.weight", (self.shape.max_positions, width))[:max_positions]
        self.layers = [
            Gpt2Layer(index, f"{prefix}h.{index}", config, self.shape, weights, linear)
            for index in range(self.shape.layers)
        ]
        self.norm = layer_norm(weights, f"{prefix}ln_f", config)
        tied = config.flag("tie_word_embeddings", default=True)
        self.head = linear(weights.head(self.embedding, tied), None)

    @staticmethod
    def describe(config: ModelConfig) -> DecoderShape:
        for key in ("add_cross_attention", "scale_attn_by_inverse_layer_idx"):
            if config.flag(key, default=False):
                raise config.error(key, "is supported as false only", True)
        width, heads = config.count("n_embd"), config.count("n_head")
        if width % heads:
            raise config.error("n_head", f"must divide n_embd ({width})", heads)
        return DecoderShape(
            layers=config.count("n_layer"),
            kv_heads=heads,
            head_dim=width // heads,
            vocabulary=config.count("vocab_size"),
            max_positions=config.count("n_positions", 1024),
        )

    @property
    def own_bytes(self) -> int:
        return self.embedding.nbytes + self.positions.nbytes

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: PagedAttention) -> Tensor:
        x = F.embedding(token_ids, self.embedding) + F.embedding(positions, self.positions)  # [N, width]
        for layer in self.layers:
            x = layer(x, attention)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)


class Gpt2Layer:
    """One block: attention, then the MLP, each on a normed copy of the residual stream."""

    def __init__(
        self,
        index: int,
        prefix: str,
        config: ModelConfig,
        shape: DecoderShape,
        weights: CheckpointReader,
        linear: MakeLinear,
    ) -> None:
        width = config.count("n_embd")
        inner = config.count("n_inner", 4 * width)

        def projection(name: str, out: int, into: int) -> Linear:
            weight = weights.linear(f"{prefix}.{name}", (out, into), transposed=True)
            return linear(weight, weights.get(f"{prefix}.{name}.bias", (out,)))

        self.index, self.heads, self.head_dim = index, shape.kv_heads, shape.head_dim
        self.scale = self.head_dim**-0.5 if config.flag("scale_attn_weights", default=True) else 1.0
        self.attention_norm = layer_norm(weights, f"{prefix}.ln_1", config)
        self.qkv = projection("attn.c_attn", 3 * width, width)
        self.out = projection("attn.c_proj", width, width)
        self.mlp_norm = layer_norm(weights, f"{prefix}.ln_2", config)
        self.up = projection("mlp.c_fc", inner, width)
        self.down = projection("mlp.c_proj", width, inner)
        self.activation = ACTIVATIONS[config.choice("activation_function", "gelu_new", tuple(ACTIVATIONS))]

    def __call__(self, x: Tensor, attention: PagedAttention) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).view(len(x), -1, self.head_dim)  # [N, 3 heads, head_dim]
        x = x + self.out(attention(self.index, qkv[:, : self.heads], qkv[:, self.heads :], self.scale))
        return x + self.down(self.activation(self.up(self.mlp_norm(x))))


def layer_norm(weights: CheckpointReader, name: str, config: ModelConfig) -> LayerNorm:
    shape = (config.count("n_embd"),)
    epsilon = config.positive("layer_norm_epsilon", 1e-5)
    return LayerNorm(weights.get(f"{name}.weight", shape), weights.get(f"{name}.bias", shape), epsilon)
