"""The supported model families: how each one's GGUF metadata and tensors become a Hugging Face checkpoint."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldplate_engine.importing.errors import ImportFailed
from coldplate_engine.importing.gguf_file import GgufFile, GgufTensor

Transform = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the checkpoint to write: its name, its final shape, its source and what is done to the values."""

    name: str
    shape: tuple[int, ...]
    source: GgufTensor
    transform: Transform | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``config`` is config.json without dtype and token ids; ``vocabulary_size`` is the rows of the embedding."""

    config: dict[str, Any]
    weights: list[Weight]
    vocabulary_size: int
    context_length: int


def read_checkpoint(file: GgufFile) -> Checkpoint:
    """What the file holds, complete and with every shape checked.

    Raises ImportFailed naming the architecture, the metadata key or the tensor that is unusable.
    """
    architecture = file.require("general.architecture", str)
    family = _FAMILIES.get(architecture)
    if family is None:
        raise ImportFailed(
            file.path,
            f"has the unsupported architecture {architecture[:40]!r}: supported are {', '.join(sorted(_FAMILIES))}",
        )
    return family(file)


class _Table:
    """Collects weights; in the end every tensor of the file must have been used, so that none is silently dropped."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._unused = dict(file.tensors)
        self.weights: list[Weight] = []

    def add(self, source: str, name: str, shape: Sequence[int], transform: Transform | None = None) -> None:
        tensor = self._unused.pop(source, None)
        if tensor is None:
            raise ImportFailed(self._file.path, f"the tensor {source} is missing")
        stored = tuple(shape[::-1]) if transform is np.transpose else tuple(shape)
        if tensor.shape != stored:
            raise ImportFailed(self._file.path, f"the tensor {source} has shape {tensor.shape}: expected {stored}")
        self.weights.append(Weight(name, tuple(shape), tensor, transform))

    def skip(self, source: str) -> None:
        self._unused.pop(source, None)

    def finish(self) -> list[Weight]:
        if self._unused:
            raise ImportFailed(
                self._file.path, f"the tensor {next(iter(self._unused))[:80]} is not part of a supported model"
            )
        return self.weights


def _positive(file: GgufFile, key: str) -> int:
    value = file.require(key, int)
    if value < 1:
        raise ImportFailed(file.path, f"the metadata key {key} is {value}: expected at least 1")
    return value


def _positive_real(file: GgufFile, key: str, default: float | None = None) -> float:
    value = file.require(key, float) if default is None else file.get(key, default)
    if not 0 < value < math.inf:
        raise ImportFailed(file.path, f"the metadata key {key} is {value}: expected a number above 0")
    return _decimal(value)


def _decimal(value: float) -> float:
    """The shortest decimal of a float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _embedding_rows(file: GgufFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise ImportFailed(file.path, "the tensor token_embd.weight is missing")
    return file.tensors["token_embd.weight"].shape[0]


def _is_tied(file: GgufFile) -> bool:
    """Whether the output matrix is the embedding: absent, or (by older converters) written a second time."""
    output, embedding = file.tensors.get("output.weight"), file.tensors["token_embd.weight"]
    if output is None:
        return True
    same_form = (output.type, output.shape) == (embedding.type, embedding.shape)
    return same_form and np.array_equal(file.raw(output), file.raw(embedding))


def _llama(file: GgufFile) -> Checkpoint:
    layers, hidden = _positive(file, "llama.block_count"), _positive(file, "llama.embedding_length")
    intermediate = _positive(file, "llama.feed_forward_length")
    heads = _positive(file, "llama.attention.head_count")
    kv_heads = (
        _positive(file, "llama.attention.head_count_kv") if "llama.attention.head_count_kv" in file.metadata else heads
    )
    head_dim = file.get("llama.attention.key_length", hidden // heads)
    rotary_dim = file.get("llama.rope.dimension_count", head_dim)
    if file.get("llama.expert_count", 0):
        raise ImportFailed(
            file.path, "is a mixture of experts, which is not supported: supported are dense llama models"
        )
    if heads % kv_heads or head_dim < 2 or head_dim % 2:
        raise ImportFailed(file.path, f"{heads} heads, {kv_heads} KV heads of {head_dim} values do not fit together")
    if (rotary_dim, file.get("llama.attention.value_length", head_dim)) != (head_dim, head_dim):
        raise ImportFailed(file.path, "RoPE over part of a head, or values of another width, is not supported")
    rope_theta = _positive_real(file, "llama.rope.freq_base", 10000.0)
    rows, tied, context = _embedding_rows(file), _is_tied(file), _positive(file, "llama.context_length")
    attention_bias, mlp_bias = "blk.0.attn_q.bias" in file.tensors, "blk.0.ffn_up.bias" in file.tensors

    table = _Table(file)
    table.add("token_embd.weight", "model.embed_tokens.weight", (rows, hidden))
    table.skip("rope_freqs.weight")  # read by _llama_rope_scaling
    for layer in range(layers):
        source, name = f"blk.{layer}", f"model.layers.{layer}"
        table.add(f"{source}.attn_norm.weight", f"{name}.input_layernorm.weight", (hidden,))
        for part, count, target in (("q", heads, "q_proj"), ("k", kv_heads, "k_proj"), ("v", kv_heads, "v_proj")):
            undo = None if part == "v" else partial(unpermute_rope_rows, heads=count)
            width = count * head_dim
            table.add(f"{source}.attn_{part}.weight", f"{name}.self_attn.{target}.weight", (width, hidden), undo)
            if attention_bias:
                table.add(f"{source}.attn_{part}.bias", f"{name}.self_attn.{target}.bias", (width,), undo)
        table.add(f"{source}.attn_output.weight", f"{name}.self_attn.o_proj.weight", (hidden, heads * head_dim))
        if attention_bias:
            table.add(f"{source}.attn_output.bias", f"{name}.self_attn.o_proj.bias", (hidden,))
        table.add(f"{source}.ffn_norm.weight", f"{name}.post_attention_layernorm.weight", (hidden,))
        for part, shape in (
            ("gate", (intermediate, hidden)),
            ("up", (intermediate, hidden)),
            ("down", (hidden, intermediate)),
        ):
            table.add(f"{source}.ffn_{part}.weight", f"{name}.mlp.{part}_proj.weight", shape)
            if mlp_bias:
                table.add(f"{source}.ffn_{part}.bias", f"{name}.mlp.{part}_proj.bias", shape[:1])
    table.add("output_norm.weight", "model.norm.weight", (hidden,))
    if tied:
        table.skip("output.weight")
    else:
        table.add("output.weight", "lm_head.weight", (rows, hidden))

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": context,
        "rms_norm_eps": _positive_real(file, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": rope_theta,
        "rope_scaling": _llama_rope_scaling(file, head_dim, rope_theta),
        "attention_bias": attention_bias,
        "mlp_bias": mlp_bias,
        "tie_word_embeddings": tied,
        "vocab_size": rows,
    }
    return Checkpoint(config, table.finish(), rows, context)


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


def _llama_rope_scaling(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any] | None:
    kind = file.get("llama.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise ImportFailed(file.path, f"has the RoPE scaling {kind[:40]!r}: supported are none, linear and Llama 3.1's")
    if "rope_freqs.weight" in file.tensors:
        factors = file.values(file.tensors["rope_freqs.weight"]).astype(np.float64)
        factor, original_context = _decimal(factors.max()), 8192
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
    if kind == "none":
        return None
    return {"rope_type": "linear", "factor": _positive_real(file, "llama.rope.scaling.factor")}


def _gpt2(file: GgufFile) -> Checkpoint:
    layers, hidden = _positive(file, "gpt2.block_count"), _positive(file, "gpt2.embedding_length")
    heads, context = _positive(file, "gpt2.attention.head_count"), _positive(file, "gpt2.context_length")
    intermediate = file.get("gpt2.feed_forward_length", 4 * hidden)
    if hidden % heads:
        raise ImportFailed(file.path, f"{heads} heads do not divide a width of {hidden}")
    rows, tied = _embedding_rows(file), _is_tied(file)

    table = _Table(file)
    table.add("token_embd.weight", "transformer.wte.weight", (rows, hidden))
    table.add("position_embd.weight", "transformer.wpe.weight", (context, hidden))
    for source, name, shape in _gpt2_layers(layers, hidden, intermediate):
        table.add(f"{source}.weight", f"{name}.weight", shape, np.transpose if len(shape) == 2 else None)
        table.add(f"{source}.bias", f"{name}.bias", shape[-1:])
    table.add("output_norm.weight", "transformer.ln_f.weight", (hidden,))
    table.add("output_norm.bias", "transformer.ln_f.bias", (hidden,))
    if tied:
        table.skip("output.weight")
    else:
        table.add("output.weight", "lm_head.weight", (rows, hidden))

    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_ctx": context,
        "n_embd": hidden,
        "n_head": heads,
        "n_inner": None if intermediate == 4 * hidden else intermediate,
        "n_layer": layers,
        "n_positions": context,
        "layer_norm_epsilon": _positive_real(file, "gpt2.attention.layer_norm_epsilon"),
        "tie_word_embeddings": tied,
        "vocab_size": rows,
    }
    return Checkpoint(config, table.finish(), rows, context)


def _gpt2_layers(layers: int, hidden: int, intermediate: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Each layer's modules; the checkpoint keeps matrices as [in, out], GGUF as [out, in]."""
    for layer in range(layers):
        source, name = f"blk.{layer}", f"transformer.h.{layer}"
        yield f"{source}.attn_norm", f"{name}.ln_1", (hidden,)
        yield f"{source}.attn_qkv", f"{name}.attn.c_attn", (hidden, 3 * hidden)
        yield f"{source}.attn_output", f"{name}.attn.c_proj", (hidden, hidden)
        yield f"{source}.ffn_norm", f"{name}.ln_2", (hidden,)
        yield f"{source}.ffn_up", f"{name}.mlp.c_fc", (hidden, intermediate)
        yield f"{source}.ffn_down", f"{name}.mlp.c_proj", (intermediate, hidden)


_FAMILIES: dict[str, Callable[[GgufFile], Checkpoint]] = {"llama": _llama, "gpt2": _gpt2}
