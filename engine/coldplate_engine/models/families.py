"""Families of the dense decoder: how a ``config.json`` of each says what its layers are.

Defaults for absent keys are transformers', so that a config means the same here. A key that would change the
computation in a way the decoder does not know is refused, never passed over.
"""

from collections.abc import Callable
from dataclasses import dataclass

from coldplate_engine.models.decoder import DecoderShape
from coldplate_engine.models.dense import DenseDecoder, LayerSpec
from coldplate_engine.models.layers import ACTIVATIONS, MakeLinear
from coldplate_engine.models.mlp import RoutingSpec
from coldplate_engine.models.rope import rotation_table
from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.reader import CheckpointReader

Windows = Callable[[ModelConfig, int], list[int | None]]

# What other architectures and forks of these write, and the values that change nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention_chunk_size": (None,),
    "attention_multiplier": (None,),
    "attn_logit_softcapping": (None,),
    "clip_qkv": (None,),
    "embedding_multiplier": (None, 1, 1.0),
    "final_logit_softcapping": (None,),
    "logits_scaling": (None, 1, 1.0),
    "no_rope_layers": (None, []),
    "parallel_attn": (None, False),
    "residual_multiplier": (None, 1, 1.0),
    "use_bidirectional_attention": (None, False),
    "use_mrope": (None, False),
    "use_parallel_residual": (None, False),
}


@dataclass(frozen=True, slots=True)
class DenseFamily:
    """See ``DecoderFamily``. ``qkv_bias``, ``out_bias`` and ``mlp_bias``: always so, or the config key that says."""

    max_positions: int
    windows: Windows
    kv_heads_optional: bool = False
    head_dim: int | None = None
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    head_norms: bool = False
    routed: bool = False

    def describe(self, config: ModelConfig) -> DecoderShape:
        for key, values in _NEUTRAL.items():
            if config.fields.get(key) not in values:
                raise config.error(key, f"is not supported for {config.architecture}", config.fields[key])
        width, heads = config.count("hidden_size"), config.count("num_attention_heads")
        optional = self.kv_heads_optional or "num_key_value_heads" in config.fields
        kv_heads = config.count("num_key_value_heads", heads if optional else None)
        if heads % kv_heads:
            raise config.error("num_key_value_heads", f"must divide num_attention_heads ({heads})", kv_heads)
        if config.fields.get("head_dim") is None and self.head_dim is None and width % heads:
            raise config.error("num_attention_heads", f"must divide hidden_size ({width})", heads)
        head_dim = config.count("head_dim", self.head_dim or width // heads)
        if head_dim % 2:
            raise config.error("head_dim", "must be even", head_dim)
        return DecoderShape(
            layers=config.count("num_hidden_layers"),
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocabulary=config.count("vocab_size"),
            max_positions=config.count("max_position_embeddings", self.max_positions),
        )

    def __call__(
        self, config: ModelConfig, weights: CheckpointReader, linear: MakeLinear, max_positions: int
    ) -> DenseDecoder:
        shape = self.describe(config)
        specs = self.layer_specs(config, shape)
        rotation = rotation_table(config, shape.head_dim, max_positions, shape.max_positions)
        tied = config.flag("tie_word_embeddings", default=False)
        return DenseDecoder(shape, specs, rotation, tied, weights, linear)

    def layer_specs(self, config: ModelConfig, shape: DecoderShape) -> list[LayerSpec]:
        """What each layer is. Raises ``ModelError`` naming the key that cannot be run."""

        def biased(where: bool | str) -> bool:
            return where if isinstance(where, bool) else config.flag(where, default=False)

        routings = _routings(config, shape.layers) if self.routed else [None] * shape.layers
        return [
            LayerSpec(
                width=config.count("hidden_size"),
                inner=config.count("intermediate_size"),
                heads=config.count("num_attention_heads"),
                kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                epsilon=config.positive("rms_norm_eps", 1e-6),
                activation=config.choice("hidden_act", "silu", tuple(ACTIVATIONS)),
                qkv_bias=biased(self.qkv_bias),
                out_bias=biased(self.out_bias),
                mlp_bias=biased(self.mlp_bias),
                head_norms=self.head_norms,
                window=window,
                routing=routing,
            )
            for window, routing in zip(self.windows(config, shape.layers), routings, strict=True)
        ]


def _routings(config: ModelConfig, layers: int) -> list[RoutingSpec | None]:
    """Qwen3-MoE: every ``decoder_sparse_step``-th layer has experts, but for those of ``mlp_only_layers``."""
    count_key = "num_experts" if "num_experts" in config.fields else "num_local_experts"
    experts, top_k = config.count(count_key), config.count("num_experts_per_tok", 8)
    if top_k > experts:
        raise config.error("num_experts_per_tok", f"must be at most {count_key} ({experts})", top_k)
    dense = config.fields.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(index, int) for index in dense):
        raise config.error("mlp_only_layers", "must list layer numbers", dense)
    step = config.count("decoder_sparse_step", 1)
    inner = config.count("moe_intermediate_size", 768)
    routing = RoutingSpec(experts, top_k, inner, config.flag("norm_topk_prob", default=False))
    return [None if index in dense or (index + 1) % step else routing for index in range(layers)]


def _no_window(config: ModelConfig, layers: int) -> list[int | None]:
    """Llama has none, and a config that names one for it was made for something else."""
    window = config.fields.get("sliding_window")
    if window is not None and window < config.count("max_position_embeddings", 2048):
        raise config.error("sliding_window", f"is not supported for {config.architecture}", window)
    return [None] * layers


def _one_window(config: ModelConfig, layers: int) -> list[int | None]:
    """Mistral: all layers alike; null is none, an absent key means 4096."""
    kinds = set(config.fields.get("layer_types") or [])
    if len(kinds) > 1:
        raise config.error("layer_types", f"must be all alike for {config.architecture}", sorted(kinds))
    if config.fields.get("sliding_window", 4096) is None:
        return [None] * layers
    return [config.count("sliding_window", 4096)] * layers


def _window_if_used(config: ModelConfig, layers: int) -> list[int | None]:
    """Qwen3-MoE: all layers alike, and only with ``use_sliding_window``."""
    return [_used_window(config)] * layers


def _window_by_layer(config: ModelConfig, layers: int) -> list[int | None]:
    """Qwen2 and Qwen3: by ``layer_types``, or from layer ``max_window_layers`` on."""
    window = _used_window(config)
    kinds = config.fields.get("layer_types")
    if kinds is None:
        first = config.fields.get("max_window_layers", 28)
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise config.error("max_window_layers", "must be a whole number", first)
        return [window if index >= first else None for index in range(layers)]
    known = {"full_attention", "sliding_attention"}
    if not isinstance(kinds, list) or len(kinds) != layers or not known.issuperset(kinds):
        raise config.error("layer_types", f"must name one of {', '.join(sorted(known))} for each layer", kinds)
    if window is None and "sliding_attention" in kinds:
        raise config.error("layer_types", "names sliding_attention, but there is no sliding_window in use", kinds)
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _used_window(config: ModelConfig) -> int | None:
    if not config.flag("use_sliding_window", default=False):
        return None
    return None if config.fields.get("sliding_window", 4096) is None else config.count("sliding_window", 4096)


# DeepSeek's dense releases (V1, Coder, R1 distilled) are checkpoints of LlamaForCausalLM and Qwen2ForCausalLM.
DENSE_FAMILIES: dict[str, DenseFamily] = {
    "LlamaForCausalLM": DenseFamily(
        2048,
        _no_window,
        kv_heads_optional=True,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    "MistralForCausalLM": DenseFamily(131072, _one_window),
    "Qwen2ForCausalLM": DenseFamily(32768, _window_by_layer, qkv_bias=True),
    "Qwen3ForCausalLM": DenseFamily(
        32768, _window_by_layer, head_dim=128, qkv_bias="attention_bias", out_bias="attention_bias", head_norms=True
    ),
    "Qwen3MoeForCausalLM": DenseFamily(
        32768,
        _window_if_used,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        head_norms=True,
        routed=True,
    ),
}
