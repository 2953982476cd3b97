"""The decoder of Llama and its kin: grouped-query attention, rotary positions, gated MLP, RMS norms.

What the families differ in is read off ``LayerSpec``; ``families.py`` says how a config becomes one.
"""

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor, arange

from coldplate_engine.models.attention import PagedAttention
from coldplate_engine.models.decoder import DecoderShape, joined_linear
from coldplate_engine.models.layers import ACTIVATIONS, Linear, MakeLinear, RmsNorm
from coldplate_engine.models.mlp import GatedMlp, Mlp, RoutedMlp, RoutingSpec
from coldplate_engine.models.rope import interleave_heads, rotate
from coldplate_engine.weights.quantized import Weight, take_rows
from coldplate_engine.weights.reader import CheckpointReader


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer. ``window``: how many tokens a token sees, itself included; None is all. ``routing``: its experts."""

    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    activation: str
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_norms: bool
    window: int | None
    routing: RoutingSpec | None


class DenseDecoder:
    """See ``Decoder``. ``rotation`` is complex64 ``[positions, 1, head_dim / 2]``."""

    def __init__(
        self,
        shape: DecoderShape,
        specs: list[LayerSpec],
        rotation: Tensor,
        tied: bool,
        weights: CheckpointReader,
        linear: MakeLinear,
    ) -> None:
        width, epsilon = specs[0].width, specs[0].epsilon
        self.shape, self.rotation = shape, rotation
        self.embedding = weights.get("model.embed_tokens.weight", (shape.vocabulary, width))
        self.layers = [DenseLayer(index, spec, weights, linear) for index, spec in enumerate(specs)]
        self.norm = RmsNorm(weights.get("model.norm.weight", (width,)), epsilon)
        self.head = linear(weights.head(self.embedding, tied), None)

    @property
    def own_bytes(self) -> int:
        return self.embedding.nbytes

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: PagedAttention) -> Tensor:
        x = F.embedding(token_ids, self.embedding)  # [N, width]
        rotation = self.rotation[positions]  # [N, 1, head_dim / 2]
        for layer in self.layers:
            x = layer(x, rotation, attention)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)


class DenseLayer:
    """One block: attention, then the MLP, each on a normed copy of the residual stream.

    Rows of ``qkv`` are query heads, key heads, value heads; those of query and key heads stand pairwise for the
    rotation, and so do the weights of ``q_norm`` and ``k_norm [head_dim]``.
    """

    def __init__(self, index: int, spec: LayerSpec, weights: CheckpointReader, linear: MakeLinear) -> None:
        self.index, self.spec = index, spec
        self.heads, self.kv_heads, self.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        self.scale, self.window = spec.head_dim**-0.5, spec.window
        prefix = f"model.layers.{index}"
        self.attention_norm = RmsNorm(weights.get(f"{prefix}.input_layernorm.weight", (spec.width,)), spec.epsilon)
        self.qkv = self._qkv(f"{prefix}.self_attn", weights, linear)
        self.q_norm = self._head_norm(f"{prefix}.self_attn.q_norm.weight", weights)
        self.k_norm = self._head_norm(f"{prefix}.self_attn.k_norm.weight", weights)
        self.out = self._out(f"{prefix}.self_attn.o_proj", weights, linear)
        name = f"{prefix}.post_attention_layernorm.weight"
        self.mlp_norm = RmsNorm(weights.get(name, (spec.width,)), spec.epsilon)
        activation = ACTIVATIONS[spec.activation]
        self.mlp: Mlp
        if spec.routing is None:
            self.mlp = GatedMlp(
                f"{prefix}.mlp", spec.width, spec.inner, activation, weights, linear, biased=spec.mlp_bias
            )
        else:
            self.mlp = RoutedMlp(f"{prefix}.mlp", spec.width, spec.routing, activation, weights, linear)

    def __call__(self, x: Tensor, rotation: Tensor, attention: PagedAttention) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).view(len(x), -1, self.head_dim)  # [N, heads + 2 kv_heads, head_dim]
        rotated = self.heads + self.kv_heads
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = qkv[:, : self.heads], qkv[:, self.heads : rotated]
            queries.copy_(self.q_norm(queries))
            keys.copy_(self.k_norm(keys))
        rotate(qkv[:, :rotated], rotation)
        attended = attention(self.index, qkv[:, : self.heads], qkv[:, self.heads :], self.scale, self.window)
        x = x + self.out(attended)
        return x + self.mlp(self.mlp_norm(x))

    def _qkv(self, prefix: str, weights: CheckpointReader, linear: MakeLinear) -> Linear:
        parts: list[tuple[Weight, Tensor | None]] = []
        for name, heads, rotated in (("q", self.heads, True), ("k", self.kv_heads, True), ("v", self.kv_heads, False)):
            rows = heads * self.head_dim
            weight = weights.linear(f"{prefix}.{name}_proj", (rows, self.spec.width))
            bias = weights.get(f"{prefix}.{name}_proj.bias", (rows,)) if self.spec.qkv_bias else None
            if rotated:
                order = interleave_heads(arange(rows), self.head_dim)
                weight, bias = take_rows(weight, order), None if bias is None else bias[order]
            parts.append((weight, bias))
        return joined_linear(linear, parts)

    def _out(self, prefix: str, weights: CheckpointReader, linear: MakeLinear) -> Linear:
        weight = weights.linear(prefix, (self.spec.width, self.heads * self.head_dim))
        return linear(weight, weights.get(f"{prefix}.bias", (self.spec.width,)) if self.spec.out_bias else None)

    def _head_norm(self, name: str, weights: CheckpointReader) -> RmsNorm | None:
        if not self.spec.head_norms:
            return None
        weight = weights.get(name, (self.head_dim,))
        return RmsNorm(interleave_heads(weight, self.head_dim), self.spec.epsilon)
