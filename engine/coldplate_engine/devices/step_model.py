"""How long a step takes on a chip that is only modelled: the roofline of its memory and its arithmetic.

seconds = max((weights + cache read) / bandwidth, operations / peak) + overhead
"""

from dataclasses import dataclass, replace

from coldplate_engine.batch import StepBatch
from coldplate_engine.runner import ModelError
from coldplate_engine.weights.config import ModelConfig

# Of the bandwidth a decode really gets: 0.72 and 0.77 were measured for an 8B and a 14B model on a 310P.
BANDWIDTH_SHARE = 0.75
PEAK_SHARE = 0.5  # of the arithmetic a prefill gets: an estimate
OVERHEAD_S = 0.0015  # of a step whose graph was captured: an estimate

_BYTES = {"float16": 2.0, "bfloat16": 2.0, "float32": 4.0}
_QUANTIZED_BYTES = {"int8": 1.0, "w8a8": 1.0, "int4": 0.56}  # with the scales of groups of 32


@dataclass(frozen=True, slots=True)
class ChipSpeed:
    """What the board says of a chip."""

    bandwidth_bytes_s: float
    fp16_flops: float
    int8_ops: float


@dataclass(frozen=True, slots=True)
class ModelSize:
    """``kv_bytes`` is of one token over all layers, in a 16-bit cache."""

    parameters: int
    kv_bytes: int
    bytes_per_parameter: float = 2.0
    int8: bool = False

    @property
    def weight_bytes(self) -> int:
        return int(self.parameters * self.bytes_per_parameter)

    def stored_as(self, dtype: str, quantize: str | None) -> "ModelSize":
        """The same model with its weights in another type."""
        size = _QUANTIZED_BYTES[quantize] if quantize else _BYTES[dtype]
        return replace(self, bytes_per_parameter=size, int8=quantize == "w8a8")

    def step_s(self, batch: StepBatch, chip: ChipSpeed) -> float:
        """Seconds of ``batch`` at the rated clock."""
        tokens = batch.token_count
        read = self.weight_bytes + self.kv_bytes * sum(piece.start + len(piece.token_ids) for piece in batch.slices)
        memory_s = read / (BANDWIDTH_SHARE * chip.bandwidth_bytes_s)
        peak = chip.int8_ops if self.int8 else chip.fp16_flops
        compute_s = 2 * self.parameters * tokens / (PEAK_SHARE * peak)
        return max(memory_s, compute_s) + OVERHEAD_S


def _size(parameters: float, layers: int, kv_heads: int, head_dim: int) -> ModelSize:
    return ModelSize(int(parameters), layers * 2 * kv_heads * head_dim * 2)


# From the models' own configurations.
KNOWN: dict[str, ModelSize] = {
    "qwen3-0.6b": _size(0.6e9, 28, 8, 128),
    "qwen3-1.7b": _size(1.72e9, 28, 8, 128),
    "qwen3-4b": _size(4.02e9, 36, 8, 128),
    "qwen3-8b": _size(8.19e9, 36, 8, 128),
    "qwen3-14b": _size(14.8e9, 40, 8, 128),
}
_SUFFIXES = ("int4", "int8", "w8a8")


def known_size(name: str) -> tuple[ModelSize, str | None]:
    """The size of ``qwen3-8b`` or, with its weights in fewer bits, ``qwen3-8b-w8a8``, and those bits.

    Raises ModelError with the names there are.
    """
    plain, _, suffix = name.rpartition("-")
    base, quantize = (plain, suffix) if suffix in _SUFFIXES else (name, None)
    if base not in KNOWN:
        raise ModelError(
            f"modelled={name[:60]}: no such model; expected {', '.join(KNOWN)}, each also with "
            f"-{', -'.join(_SUFFIXES)} behind it"
        )
    return KNOWN[base], quantize


def size_of(config: ModelConfig) -> ModelSize:
    """The size that a dense decoder's ``config.json`` tells. Raises ModelError for what is none."""
    fields = config.fields
    if any(fields.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise config.error(
            "architectures",
            "must be of a dense model to be modelled (or name one, as in modelled=qwen3-8b)",
            fields.get("architectures"),
        )
    gpt2 = "n_embd" in fields
    hidden = config.count("n_embd" if gpt2 else "hidden_size")
    layers = config.count("n_layer" if gpt2 else "num_hidden_layers")
    heads = config.count("n_head" if gpt2 else "num_attention_heads")
    kv_heads = config.count("num_key_value_heads", heads)
    head_dim = config.count("head_dim", max(1, hidden // heads))
    inner = config.count("n_inner" if gpt2 else "intermediate_size", 4 * hidden)
    attention = 2 * hidden * head_dim * (heads + kv_heads)
    feed_forward = (2 if gpt2 else 3) * hidden * inner
    embeddings = config.count("vocab_size") * hidden * (1 if config.flag("tie_word_embeddings", gpt2) else 2)
    return _size(layers * (attention + feed_forward) + embeddings, layers, kv_heads, head_dim)
