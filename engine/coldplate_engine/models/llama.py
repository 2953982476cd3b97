"""Llama: grouped-query attention, rotary positions, gated MLP, RMS norms."""

import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor, arange

from coldplate_engine.models.attention import PagedAttention
from coldplate_engine.models.decoder import DecoderShape, joined_linear
from coldplate_engine.models.layers import ACTIVATIONS, MakeLinear, RmsNorm
from coldplate_engine.models.rope import interleave_heads, rotate, rotation_table
from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.quantized import Weight, take_rows
from coldplate_engine.weights.reader import CheckpointReader

Part = tuple[Weight, Tensor | None]  # weight and bias


class Llama:
    """``LlamaForCausalLM``."""

    def __init__(self, config: ModelConfig, weights: CheckpointReader, linear: MakeLinear, max_positions: int) -> None:
        self.shape = self.describe(config)
        vocabulary, width = self.shape.vocabulary, config.count("hidden_size")
        epsilon = config.positive("rms_norm_eps", 1e-6)
        self.rotation = rotation_table(config, self.shape.head_dim, max_positions)
        self.embedding = weights.get("model.embed_tokens.weight", (vocabulary, width))
        self.layers = [
            LlamaLayer(index, config, self.shape, weights, linear, epsilon) for index in range(self.shape.layers)
        ]
        self.norm = RmsNorm(weights.get("model.norm.weight", (width,)), epsilon)
        tied = config.flag("tie_word_embeddings", default=False)
        self.head = linear(weights.head(self.embedding, tied), None)

    @staticmethod
    def describe(config: ModelConfig) -> DecoderShape:
        width, heads = config.count("hidden_size"), config.count("num_attention_heads")
        kv_heads = config.count("num_key_value_heads", heads)
        if heads % kv_heads:
            raise config.error("num_key_value_heads", f"must divide num_attention_heads ({heads})", kv_heads)
        if "head_dim" not in config.fields and width % heads:
            raise config.error("num_attention_heads", f"must divide hidden_size ({width})", heads)
        head_dim = config.count("head_dim", width // heads)
        if head_dim % 2:
            raise config.error("head_dim", "must be even", head_dim)
        return DecoderShape(
            layers=config.count("num_hidden_layers"),
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocabulary=config.count("vocab_size"),
            max_positions=config.count("max_position_embeddings", 2048),
        )

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: PagedAttention) -> Tensor:
        x = F.embedding(token_ids, self.embedding)  # [N, width]
        rotation = self.rotation[positions]  # [N, 1, head_dim / 2]
        for layer in self.layers:
            x = layer(x, rotation, attention)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)


class LlamaLayer:
    """One block: attention, then the gated MLP, each on a normed copy of the residual stream."""

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        shape: DecoderShape,
        weights: CheckpointReader,
        linear: MakeLinear,
        epsilon: float,
    ) -> None:
        width, inner = config.count("hidden_size"), config.count("intermediate_size")
        heads, kv_heads, head_dim = config.count("num_attention_heads"), shape.kv_heads, shape.head_dim
        attention_bias = config.flag("attention_bias", default=False)
        mlp_bias = config.flag("mlp_bias", default=False)
        prefix = f"model.layers.{index}"

        def projection(name: str, out: int, into: int, biased: bool, rotated: bool = False) -> Part:
            weight = weights.linear(f"{prefix}.{name}", (out, into))
            bias = weights.get(f"{prefix}.{name}.bias", (out,)) if biased else None
            if rotated:
                order = interleave_heads(arange(out), head_dim)
                weight, bias = take_rows(weight, order), bias if bias is None else bias[order]
            return weight, bias

        qkv = [
            projection("self_attn.q_proj", heads * head_dim, width, attention_bias, rotated=True),
            projection("self_attn.k_proj", kv_heads * head_dim, width, attention_bias, rotated=True),
            projection("self_attn.v_proj", kv_heads * head_dim, width, attention_bias),
        ]
        gate_up = [projection(f"mlp.{name}_proj", inner, width, mlp_bias) for name in ("gate", "up")]

        self.index, self.heads, self.rotated = index, heads, heads + kv_heads
        self.head_dim, self.scale = head_dim, head_dim**-0.5
        self.attention_norm = RmsNorm(weights.get(f"{prefix}.input_layernorm.weight", (width,)), epsilon)
        self.qkv = joined_linear(linear, qkv)
        self.out = linear(*projection("self_attn.o_proj", width, heads * head_dim, attention_bias))
        self.mlp_norm = RmsNorm(weights.get(f"{prefix}.post_attention_layernorm.weight", (width,)), epsilon)
        self.gate_up = joined_linear(linear, gate_up)
        self.down = linear(*projection("mlp.down_proj", width, inner, mlp_bias))
        self.activation = ACTIVATIONS[config.choice("hidden_act", "silu", tuple(ACTIVATIONS))]

    def __call__(self, x: Tensor, rotation: Tensor, attention: PagedAttention) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).view(len(x), -1, self.head_dim)  # [N, heads + 2 kv_heads, head_dim]
        rotate(qkv[:, : self.rotated], rotation)
        x = x + self.out(attention(self.index, qkv[:, : self.heads], qkv[:, self.heads :], self.scale))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=1)  # [N, inner] each
        return x + self.down(self.activation(gate) * up)
