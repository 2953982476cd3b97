"""Tiny random models of every family, made and saved by transformers: the references for exactness."""

from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY, CONTEXT = 97, 128

LLAMA: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
}
GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": CONTEXT,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE: dict[str, Any] = LLAMA | {
    "head_dim": 12,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 28,
    "norm_topk_prob": True,
}


def rope(kind: str, **options: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **options}}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-grouped": ("llama", LLAMA),
    "llama-tied": ("llama", LLAMA | {"tie_word_embeddings": True}),
    "llama-biased": ("llama", LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", LLAMA | {"head_dim": 20, "num_key_value_heads": 6, "hidden_act": "gelu"}),
    "llama-rope-linear": (
        "llama",
        LLAMA | {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4}},
    ),
    "llama-rope-llama3": (
        "llama",
        LLAMA
        | rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    ),
    "llama-rope-dynamic": ("llama", LLAMA | rope("dynamic", factor=2.0)),
    "llama-rope-yarn": ("llama", LLAMA | rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama-rope-yarn-exact": (
        "llama",
        LLAMA
        | {"head_dim": 32}
        | rope(
            "yarn",
            factor=8.0,
            original_max_position_embeddings=16,
            beta_fast=4.0,
            beta_slow=0.5,
            mscale=0.7,
            mscale_all_dim=1.1,
            truncate=False,
        ),
    ),
    "llama-rope-yarn-factor": (
        "llama",
        LLAMA | rope("yarn", factor=4.0, original_max_position_embeddings=32, attention_factor=1.3),
    ),
    "llama-rope-longrope": (
        "llama",
        LLAMA
        | rope(
            "longrope",
            factor=2.0,
            original_max_position_embeddings=CONTEXT,
            short_factor=[1.0, 1.5, 2.0, 3.0],
            long_factor=[4.0] * 4,
        ),
    ),
    "mistral-window": ("mistral", LLAMA | {"sliding_window": 9}),
    "mistral-no-window": ("mistral", LLAMA | {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("qwen2", LLAMA | {"tie_word_embeddings": True}),
    "qwen2-window": ("qwen2", LLAMA | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen2-layer-types": (
        "qwen2",
        LLAMA
        | {
            "use_sliding_window": True,
            "sliding_window": 11,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen3": ("qwen3", LLAMA | {"head_dim": 20, "tie_word_embeddings": True}),
    "qwen3-biased-window": (
        "qwen3",
        LLAMA
        | {
            "head_dim": 8,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 0,
        },
    ),
    "qwen3-moe": ("qwen3_moe", MOE),
    "qwen3-moe-mixed": (
        "qwen3_moe",
        MOE
        | {
            "num_hidden_layers": 4,
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 10,
        },
    ),
    "gpt2": ("gpt2", GPT2),
    "gpt2-untied-relu": ("gpt2", GPT2 | {"tie_word_embeddings": False, "activation_function": "relu", "n_inner": 52}),
    "gpt2-gelu-unscaled": ("gpt2", GPT2 | {"activation_function": "gelu", "scale_attn_weights": False}),
}


_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
}
GPT_NEOX: dict[str, Any] = _COMMON | {"num_attention_heads": 4, "intermediate_size": 80}
GEMMA: dict[str, Any] = _COMMON | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "pad_token_id": 0,
}
# Architectures that run through transformers' modules on the engine's cache.
GENERIC_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-neox": ("gpt_neox", GPT_NEOX),
    "gpt-neox-serial-untied": ("gpt_neox", GPT_NEOX | {"use_parallel_residual": False, "rotary_pct": 0.5}),
    "gemma": ("gemma", GEMMA | {"num_key_value_heads": 1}),
    "gemma2-capped-window": (
        "gemma2",
        GEMMA
        | {
            "sliding_window": 9,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
            "query_pre_attn_scalar": 24,
        },
    ),
    "gemma3-window": (
        "gemma3_text",
        GEMMA | {"num_hidden_layers": 3, "sliding_window": 7, "sliding_window_pattern": 2},
    ),
    "gemma3-vision": (
        "gemma3",
        {
            "text_config": GEMMA | {"sliding_window": 7, "sliding_window_pattern": 2},
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
            "image_token_index": 96,
            "boi_token_index": 95,
            "eoi_token_index": 94,
        },
    ),
    "opt": (
        "opt",
        _COMMON | {"num_attention_heads": 4, "ffn_dim": 80, "word_embed_proj_dim": 24, "do_layer_norm_before": False},
    ),
    "phi": ("phi", _COMMON | {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 80}),
    "mixtral": (
        "mixtral",
        LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 11, "head_dim": 8},
    ),
    "qwen2-moe": (
        "qwen2_moe",
        LLAMA
        | {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 20,
        },
    ),
    "gpt-bigcode": ("gpt_bigcode", GPT2),  # all heads share one key head
    "deepseek-v2": (
        "deepseek_v2",
        LLAMA
        | {
            "num_key_value_heads": 6,
            "kv_lora_rank": 16,
            "q_lora_rank": 20,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 14,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
        },
    ),
}


def save_model(kind: str, options: dict[str, Any], path: Path, seed: int = 0) -> Any:
    """A random model of transformers, saved: biases and norms are random too, not the neutral 0 and 1.

    Its attention is the eager one, which leaves out nothing a config asks for.
    """
    torch.manual_seed(seed)
    library: Any = transformers
    config = library.AutoConfig.for_model(kind, **options)
    model = library.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name or "ln_" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    model.save_pretrained(path)
    return model
