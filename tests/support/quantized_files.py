"""Tiny checkpoints in the layouts of AutoAWQ, GPTQ and compressed-tensors, written with torch from codes we choose.

``plain_twin`` is the same model with plain float32 weights, which is what each of them must compute.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from coldplate_engine.weights.quantized import Int4Weight, Int8Weight
from support.tokenizers import BYTES_VOCABULARY

Tensors = dict[str, Tensor]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
WIDTH, INNER, VOCABULARY = 64, 96, BYTES_VOCABULARY
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """``draw`` makes a weight that the layout can hold, ``store`` its tensors behind the layer's name."""

    quantization_config: dict[str, Any]
    draw: Callable[[torch.Generator, int, int], Int4Weight | Int8Weight]
    store: Callable[[Int4Weight | Int8Weight], Tensors]


def linears() -> dict[str, tuple[int, int]]:
    shapes = {}
    for layer in range(2):
        at = f"model.layers.{layer}"
        for name in ("q", "k", "v", "o"):
            shapes[f"{at}.self_attn.{name}_proj"] = (WIDTH // 2 if name in "kv" else WIDTH, WIDTH)
        shapes |= {f"{at}.mlp.{name}_proj": (INNER, WIDTH) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj"] = (WIDTH, INNER)
    return shapes


def write(folder: Path, layout: Layout, *, seed: int = 0) -> tuple[Path, Path]:
    """The quantised checkpoint and its plain twin."""
    draw = torch.Generator().manual_seed(seed)
    shared: Tensors = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, WIDTH, generator=draw),
        "lm_head.weight": torch.randn(VOCABULARY, WIDTH, generator=draw),
        "model.norm.weight": torch.ones(WIDTH),
    }
    for layer in range(2):
        for name in ("input_layernorm", "post_attention_layernorm"):
            shared[f"model.layers.{layer}.{name}.weight"] = torch.ones(WIDTH)
    quantized, plain = dict(shared), dict(shared)
    for name, (out, width) in linears().items():
        weight = layout.draw(draw, out, width)
        quantized |= {f"{name}.{part}": tensor.contiguous() for part, tensor in layout.store(weight).items()}
        plain[f"{name}.weight"] = weight.dequantized()
    for path, tensors, extra in (
        (folder / "quantized", quantized, {"quantization_config": layout.quantization_config}),
        (folder / "plain", plain, {}),
    ):
        path.mkdir()
        (path / "config.json").write_text(json.dumps(CONFIG | extra))
        save_file(tensors, path / "model.safetensors")
    return folder / "quantized", folder / "plain"


def draw_int4(group: int, symmetric: bool = False) -> Callable[[torch.Generator, int, int], Int4Weight]:
    def draw(generator: torch.Generator, out: int, width: int) -> Int4Weight:
        shape = (out, width // (width if group < 0 else group))
        zeros = torch.full(shape, 8.0)
        if not symmetric:
            zeros = torch.randint(0, 16, shape, generator=generator).float()
        return Int4Weight(
            torch.randint(0, 256, (out, width // 2), generator=generator, dtype=torch.uint8),
            (torch.rand(shape, generator=generator) * 0.05).half().float(),
            zeros,
            width // shape[1],
        )

    return draw


def draw_int8(
    group: int = -1, *, activations: bool = False, one_scale: bool = False
) -> Callable[[torch.Generator, int, int], Int8Weight]:
    def draw(generator: torch.Generator, out: int, width: int) -> Int8Weight:
        scales = (torch.rand(out, width // (width if group < 0 else group), generator=generator) * 0.003).half().float()
        if one_scale:
            scales = scales[:1].expand(out, -1).contiguous()
        values = torch.randint(-128, 128, (out, width), generator=generator, dtype=torch.int8)
        return Int8Weight(values, scales, width // scales.shape[1], activations)

    return draw


def awq(group: int = 32, **changes: Any) -> Layout:
    def store(weight: Int4Weight | Int8Weight) -> Tensors:
        assert isinstance(weight, Int4Weight)
        return {
            "qweight": pack_last(_codes(weight).t(), 4, AWQ_ORDER),
            "qzeros": pack_last(weight.zeros.int().t(), 4, AWQ_ORDER),
            "scales": weight.scales.t().half(),
        }

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Layout(config | changes, draw_int4(group), store)


def gptq(group: int = 32, version: str | None = None, **changes: Any) -> Layout:
    def store(weight: Int4Weight | Int8Weight) -> Tensors:
        assert isinstance(weight, Int4Weight)
        stored = weight.zeros.int().t() - (0 if version == "gptq_v2" else 1)
        return {
            "qweight": pack_last(_codes(weight), 4).t(),
            "qzeros": pack_last(stored & 15, 4),
            "scales": weight.scales.t().half(),
            "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // weight.group_size,
        }

    config = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False, "sym": True}
    if version is not None:
        config["checkpoint_format"] = version
    return Layout(config | changes, draw_int4(group, symmetric=True), store)


def packed(
    bits: int = 4, group: int = 32, *, symmetric: bool = True, old_zeros: bool = False, **changes: Any
) -> Layout:
    """compressed-tensors' ``pack-quantized``. ``old_zeros``: zero points as int8 and not packed."""

    def store(weight: Int4Weight | Int8Weight) -> Tensors:
        codes = _codes(weight) if isinstance(weight, Int4Weight) else weight.values.int() + 128
        tensors = {
            "weight_packed": pack_last(codes, bits),
            "weight_scale": weight.scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if isinstance(weight, Int4Weight) and not symmetric:
            zeros = weight.zeros.int()
            tensors["weight_zero_point"] = (zeros - 8).to(torch.int8) if old_zeros else pack_last(zeros.t(), 4).t()
        return tensors

    draw: Any = draw_int4(group, symmetric) if bits == 4 else draw_int8(group)
    return Layout(_compressed("pack-quantized", bits, group, symmetric, False, **changes), draw, store)


def int8(
    *, activations: bool = False, strategy: str = "channel", kind: str = "int-quantized", **changes: Any
) -> Layout:
    """compressed-tensors' plain int8 layouts."""

    def store(weight: Int4Weight | Int8Weight) -> Tensors:
        assert isinstance(weight, Int8Weight)
        scale = weight.scales[:1, 0] if strategy == "tensor" else weight.scales
        return {"weight": weight.values, "weight_scale": scale.half()}

    config = _compressed(kind, 8, -1, True, activations, **changes)
    config["config_groups"]["group_0"]["weights"]["strategy"] = strategy
    return Layout(config, draw_int8(activations=activations, one_scale=strategy == "tensor"), store)


def _compressed(kind: str, bits: int, group: int, symmetric: bool, activations: bool, **changes: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "channel" if group < 0 else "group"}
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**weights, "group_size": None if group < 0 else group, "actorder": None},
                "input_activations": inputs if activations else None,
                "output_activations": None,
            }
        },
    } | changes


def pack_last(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Codes ``[rows, n]`` into int32 words; the code at bits ``i · bits`` of a word is its column ``order[i]``."""
    count = 32 // bits
    codes = torch.nn.functional.pad(codes.to(torch.int64), (0, -codes.shape[1] % count))
    grouped = codes.reshape(codes.shape[0], -1, count)
    words = sum(grouped[:, :, at if order is None else order[at]] << (bits * at) for at in range(count))
    assert isinstance(words, Tensor)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _codes(weight: Int4Weight | Int8Weight) -> Tensor:
    assert isinstance(weight, Int4Weight)
    return torch.stack((weight.packed & 15, weight.packed >> 4), dim=2).view(weight.shape).int()
