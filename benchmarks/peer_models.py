"""The models of ``peers.py``: the demo model, and random weights of a published shape, as checkpoint and as GGUF."""

import json
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from coldplate.paths import model_cache
from coldplate_engine.importing.demo_model import ensure_demo_model, find_demo_gguf

SEED = 20_261


@dataclass(frozen=True, slots=True)
class BenchModel:
    """``prompt_ids``: token ids below this are safe to feed."""

    name: str
    folder: Path
    gguf: Path
    gguf_type: str
    prompt_ids: int


@dataclass(frozen=True, slots=True)
class QwenShape:
    """A Qwen2.5 model's shape, from its published config.json."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int = 151_936

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


QWEN_0_5B = QwenShape(hidden=896, layers=24, heads=14, kv_heads=2, inner=4864)
QWEN_1_5B = QwenShape(hidden=1536, layers=28, heads=12, kv_heads=2, inner=8960)


def smollm2() -> BenchModel:
    folder = ensure_demo_model(lambda phase, share: None)
    return BenchModel("SmolLM2-135M", folder, find_demo_gguf(), "Q4_1", 2_000)


def random_qwen(name: str, shape: QwenShape) -> BenchModel:
    """Made on first use and kept in the model cache: bfloat16 weights, and the same as Q4_1 with a Q8_0 embedding."""
    folder = model_cache() / f"random-{name}"
    model = BenchModel(name, folder, folder / "model-Q4_1.gguf", "Q4_1", 2_000)
    if (folder / ".complete").exists():
        return model
    folder.mkdir(parents=True, exist_ok=True)
    weights = _weights(shape)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(shape), indent=2))
    tokens = _tokens(shape.vocabulary)
    _save_tokenizer(folder, tokens)
    _save_gguf(model.gguf, name, shape, weights, tokens)
    (folder / ".complete").touch()
    return model


def _config(shape: QwenShape) -> dict[str, object]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.inner,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": 32_768,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
        "bos_token_id": 0,
    }


def _weights(shape: QwenShape) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)

    def normal(*size: int) -> torch.Tensor:
        return (torch.randn(*size, generator=generator) * 0.02).bfloat16()

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = {
        "model.embed_tokens.weight": normal(shape.vocabulary, shape.hidden),
        "model.norm.weight": ones(shape.hidden),
    }
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        for name, out in (("q", q), ("k", kv), ("v", kv)):
            weights[f"{at}.self_attn.{name}_proj.weight"] = normal(out, shape.hidden)
            weights[f"{at}.self_attn.{name}_proj.bias"] = normal(out)
        weights[f"{at}.self_attn.o_proj.weight"] = normal(shape.hidden, q)
        weights[f"{at}.mlp.gate_proj.weight"] = normal(shape.inner, shape.hidden)
        weights[f"{at}.mlp.up_proj.weight"] = normal(shape.inner, shape.hidden)
        weights[f"{at}.mlp.down_proj.weight"] = normal(shape.hidden, shape.inner)
        weights[f"{at}.input_layernorm.weight"] = ones(shape.hidden)
        weights[f"{at}.post_attention_layernorm.weight"] = ones(shape.hidden)
    return weights


def _tokens(count: int) -> list[str]:
    """The 256 byte symbols, then made-up words: only ids are fed, but every engine wants a tokenizer."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    return symbols + [f"word{number}" for number in range(count - len(symbols))]


def _save_tokenizer(folder: Path, tokens: list[str]) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"


def _save_gguf(path: Path, name: str, shape: QwenShape, weights: dict[str, torch.Tensor], tokens: list[str]) -> None:
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name(name)
    writer.add_context_length(32_768)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges([f"{tokens[0]} {tokens[1]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for key, tensor in weights.items():
        values = tensor.float().numpy()
        kind = gguf.GGMLQuantizationType.F32
        if values.ndim == 2:
            embedding = key == "model.embed_tokens.weight"
            kind = gguf.GGMLQuantizationType.Q8_0 if embedding else gguf.GGMLQuantizationType.Q4_1
        data = values if kind == gguf.GGMLQuantizationType.F32 else quantize(values, kind)
        writer.add_tensor(_gguf_name(key), np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
