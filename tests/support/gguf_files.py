"""Tiny GGUF files, written with gguf's own writer and tensor names the way llama.cpp's converter does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

Array = NDArray[Any]
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "1 2", "12 3")
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
BYTE_LEVEL_TOKENS = (
    *SPECIAL_TOKENS,
    "<tool>",
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *(merge.replace(" ", "") for merge in MERGES),
)


def converter_permute(rows: Array, heads: int) -> Array:
    """The order in which llama.cpp's converter writes the rows of query and key projections."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def through(values: Array, kind: str) -> Array:
    """What is left of the values after being stored as ``kind``."""
    quantization = gguf.GGMLQuantizationType[kind]
    if kind == "F32":
        return values
    if kind == "F16":
        return values.astype(np.float16)
    stored: Array = dequantize(quantize(values, quantization), quantization)
    return stored


def add_byte_level_tokenizer(writer: gguf.GGUFWriter, pre: str | None = "smollm") -> None:
    """256 bytes, a few merges, three control tokens and one of the user's."""
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(BYTE_LEVEL_TOKENS))
    plain = len(BYTE_LEVEL_TOKENS) - 4
    writer.add_token_types(
        [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.USER_DEFINED] + [gguf.TokenType.NORMAL] * plain
    )
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def add_sentencepiece_tokenizer(writer: gguf.GGUFWriter, pieces: Mapping[str, float]) -> None:
    """<unk>, <s>, </s>, the 256 byte tokens and the given pieces with their scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(pieces)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_scores([0.0] * 259 + list(pieces.values()))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_llama(path: Path, config: Any, state: Mapping[str, Array], kind: str = "F32", *, pre: str = "smollm") -> None:
    """A llama file from transformers' config and tensors; matrices are stored as ``kind``."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    permuted = {
        name: converter_permute(values, count) if (count := heads.get(name.split(".")[-2])) else values
        for name, values in state.items()
    }
    _write_dense(path, "llama", gguf.MODEL_ARCH.LLAMA, config, permuted, kind, pre)


def write_qwen(path: Path, config: Any, state: Mapping[str, Array], kind: str = "F32") -> None:
    """A qwen2 or qwen3 file from transformers' config and tensors; matrices are stored as ``kind``."""
    architecture = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}[config.model_type]
    _write_dense(path, config.model_type, architecture, config, state, kind, "qwen2")


def _write_dense(
    path: Path, key: str, architecture: gguf.MODEL_ARCH, config: Any, state: Mapping[str, Array], kind: str, pre: str
) -> None:
    writer = gguf.GGUFWriter(path, key)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    add_byte_level_tokenizer(writer, pre)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, values in state.items():
        _add(writer, names.get_name(name, try_suffixes=(".weight", ".bias")), values, kind)
    finish(writer)


def write_gpt2(path: Path, config: Any, state: Mapping[str, Array], kind: str = "F32") -> None:
    """A gpt2 file from transformers' config and tensors."""
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    add_byte_level_tokenizer(writer, "gpt-2")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config.n_layer)
    for name, values in state.items():
        stored = values.T if name.split(".")[-2] in ("c_attn", "c_proj", "c_fc") and values.ndim == 2 else values
        _add(writer, names.get_name(name, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(stored), kind)
    finish(writer)


def _add(writer: gguf.GGUFWriter, name: str | None, values: Array, kind: str) -> None:
    assert name is not None
    quantization = gguf.GGMLQuantizationType[kind if values.ndim > 1 else "F32"]
    if quantization == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
    elif quantization == gguf.GGMLQuantizationType.F16:
        writer.add_tensor(name, values.astype(np.float16))
    else:
        writer.add_tensor(name, quantize(values, quantization), raw_dtype=quantization)
