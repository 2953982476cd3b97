"""Files of the dense families: Llama, Qwen2 and Qwen3."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldplate_engine.importing.errors import ImportFailed
from coldplate_engine.importing.gguf_checkpoint import (
    Checkpoint,
    Table,
    decimal,
    embedding_rows,
    is_tied,
    positive,
    positive_real,
)
from coldplate_engine.importing.gguf_file import GgufFile


@dataclass(frozen=True, slots=True)
class _Family:
    """``pairs``: the file has the rows of queries and keys in rotated pairs; ``norms``: heads are normed one by one."""

    key: str
    architecture: str
    pairs: bool = False
    norms: bool = False


def llama(file: GgufFile) -> Checkpoint:
    """``LlamaForCausalLM``, with the biases that the file has."""
    family = _Family("llama", "LlamaForCausalLM", pairs=True)
    attention_bias, mlp_bias = "blk.0.attn_q.bias" in file.tensors, "blk.0.ffn_up.bias" in file.tensors
    checkpoint = _dense(file, family, qkv_bias=attention_bias, out_bias=attention_bias, mlp_bias=mlp_bias)
    checkpoint.config.update(attention_bias=attention_bias, mlp_bias=mlp_bias)
    return checkpoint


def qwen2(file: GgufFile) -> Checkpoint:
    """``Qwen2ForCausalLM``: queries, keys and values have biases."""
    checkpoint = _dense(file, _Family("qwen2", "Qwen2ForCausalLM"), qkv_bias=True)
    checkpoint.config.update(use_sliding_window=False)
    return checkpoint


def qwen3(file: GgufFile) -> Checkpoint:
    """``Qwen3ForCausalLM``: queries and keys are normed head by head."""
    checkpoint = _dense(file, _Family("qwen3", "Qwen3ForCausalLM", norms=True))
    checkpoint.config.update(attention_bias=False, use_sliding_window=False)
    return checkpoint


def _dense(
    file: GgufFile, family: _Family, *, qkv_bias: bool = False, out_bias: bool = False, mlp_bias: bool = False
) -> Checkpoint:
    key = family.key
    layers, hidden = positive(file, f"{key}.block_count"), positive(file, f"{key}.embedding_length")
    intermediate, heads = positive(file, f"{key}.feed_forward_length"), positive(file, f"{key}.attention.head_count")
    kv_key = f"{key}.attention.head_count_kv"
    kv_heads = positive(file, kv_key) if kv_key in file.metadata else heads
    head_dim = _head_dim(file, key, hidden, heads, kv_heads)
    rope_theta = positive_real(file, f"{key}.rope.freq_base", 10000.0)
    rows, tied, context = embedding_rows(file), is_tied(file), positive(file, f"{key}.context_length")

    table = Table(file)
    table.add("token_embd.weight", "model.embed_tokens.weight", (rows, hidden))
    table.skip("rope_freqs.weight")  # read by _rope_scaling
    for layer in range(layers):
        source, name = f"blk.{layer}", f"model.layers.{layer}"
        table.add(f"{source}.attn_norm.weight", f"{name}.input_layernorm.weight", (hidden,))
        for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            undo = partial(unpermute_rope_rows, heads=count) if family.pairs and part != "v" else None
            width, target = count * head_dim, f"{name}.self_attn.{part}_proj"
            table.add(f"{source}.attn_{part}.weight", f"{target}.weight", (width, hidden), undo)
            if qkv_bias:
                table.add(f"{source}.attn_{part}.bias", f"{target}.bias", (width,), undo)
            if family.norms and part != "v":
                norm = f"{name}.self_attn.{part}_norm.weight"
                table.add(f"{source}.attn_{part}_norm.weight", norm, (head_dim,))
        table.add(f"{source}.attn_output.weight", f"{name}.self_attn.o_proj.weight", (hidden, heads * head_dim))
        if out_bias:
            table.add(f"{source}.attn_output.bias", f"{name}.self_attn.o_proj.bias", (hidden,))
        table.add(f"{source}.ffn_norm.weight", f"{name}.post_attention_layernorm.weight", (hidden,))
        inward, outward = (intermediate, hidden), (hidden, intermediate)
        for part, shape in (("gate", inward), ("up", inward), ("down", outward)):
            table.add(f"{source}.ffn_{part}.weight", f"{name}.mlp.{part}_proj.weight", shape)
            if mlp_bias:
                table.add(f"{source}.ffn_{part}.bias", f"{name}.mlp.{part}_proj.bias", shape[:1])
    table.add("output_norm.weight", "model.norm.weight", (hidden,))
    if tied:
        table.skip("output.weight")
    else:
        table.add("output.weight", "lm_head.weight", (rows, hidden))

    config = {
        "architectures": [family.architecture],
        "model_type": key,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": context,
        "rms_norm_eps": positive_real(file, f"{key}.attention.layer_norm_rms_epsilon"),
        "rope_theta": rope_theta,
        "rope_scaling": _rope_scaling(file, key, head_dim, rope_theta),
        "tie_word_embeddings": tied,
        "vocab_size": rows,
    }
    return Checkpoint(config, table.finish(), rows, context)


def _head_dim(file: GgufFile, key: str, hidden: int, heads: int, kv_heads: int) -> int:
    head_dim: int = file.get(f"{key}.attention.key_length", hidden // heads)
    rotary_dim = file.get(f"{key}.rope.dimension_count", head_dim)
    if file.get(f"{key}.expert_count", 0):
        raise ImportFailed(
            file.path, f"is a mixture of experts, which is not supported: supported are dense {key} models"
        )
    if heads % kv_heads or head_dim < 2 or head_dim % 2:
        raise ImportFailed(file.path, f"{heads} heads, {kv_heads} KV heads of {head_dim} values do not fit together")
    if (rotary_dim, file.get(f"{key}.attention.value_length", head_dim)) != (head_dim, head_dim):
        raise ImportFailed(file.path, "RoPE over part of a head, or values of another width, is not supported")
    return head_dim


def unpermute_rope_rows(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Give the rows of a query or key projection back the order in which RoPE rotates a head's two halves.

    A llama GGUF has them in pairs, (x0, y0, x1, y1 …) for halves x and y: its writer did
    ``reshape(heads, 2, dim / 2, …).swapaxes(1, 2)``; this is the inverse. Shape [heads * dim, …] in and out.
    """
    paired = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return paired.swapaxes(1, 2).reshape(rows.shape)


def llama3_frequency_factors(head_dim: int, theta: float, factor: float, original_context: int) -> NDArray[Any]:
    """What Llama 3.1 divides the RoPE frequencies by (low and high frequency factor 1 and 4); shape [head_dim / 2]."""
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = original_context * frequencies / (2 * np.pi)
    smooth = np.clip((turns - 1) / (4 - 1), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))


def _rope_scaling(file: GgufFile, key: str, head_dim: int, theta: float) -> dict[str, Any] | None:
    kind = file.get(f"{key}.rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise ImportFailed(
            file.path, f"has the RoPE scaling {kind[:40]!r}: supported are none, linear, yarn and Llama 3.1's"
        )
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file, head_dim, theta)
    if kind == "none":
        return None
    factor = positive_real(file, f"{key}.rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    original = positive(file, f"{key}.rope.scaling.original_context_length")
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}


def _llama3_scaling(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any]:
    factors = file.values(file.tensors["rope_freqs.weight"]).astype(np.float64)
    factor, original_context = decimal(factors.max()), 8192
    expected = llama3_frequency_factors(head_dim, theta, factor, original_context)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise ImportFailed(file.path, "the tensor rope_freqs.weight holds a RoPE scaling other than Llama 3.1's")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original_context,
    }
