"""Configs as they are published, and configs that cannot be run: each is refused by the name of its key."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.devices.cpu import CpuDevice
from coldplate_engine.models.decoder_runner import DecoderRunner
from coldplate_engine.runner import ModelError
from coldplate_engine.step_timer import StepTimer
from support.random_models import LLAMA, MOE, save_model

IDS = [(7 * at + 3) % 97 for at in range(40)]


def load(path: Path, **options: Any) -> DecoderRunner:
    return CpuDevice(threads=1).load(path, "float32", None, lambda _phase, _share: None, **options)


def logits(path: Path, **options: Any) -> torch.Tensor:
    runner = load(path, **options)
    runner.allocate_kv(4, 16)
    return runner.execute(StepBatch([StreamSlice(0, IDS, 0, [3, 0, 2], len(IDS))]), StepTimer())


def rewrite(path: Path, remove: tuple[str, ...] = (), **keys: Any) -> None:
    file = path / "config.json"
    fields = {key: value for key, value in json.loads(file.read_text()).items() if key not in remove}
    file.write_text(json.dumps(fields | keys))


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "rope", "published"),
    [
        # DeepSeek LLM, DeepSeek Coder, R1 distilled into Llama and into Qwen: the dense releases.
        ("llama", {}, {"rope_theta": 10000.0, "rope_scaling": None, "pretraining_tp": 1, "attention_bias": False}),
        (
            "llama",
            {"rope_type": "linear", "factor": 4.0, "rope_theta": 100000.0},
            {"rope_theta": 100000, "rope_scaling": {"type": "linear", "factor": 4.0}},
        ),
        (
            "llama",
            {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            {
                "rope_theta": 500000.0,
                "rope_scaling": {
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                    "rope_type": "llama3",
                },
            },
        ),
        (
            "qwen2",
            {},
            {
                "rope_theta": 10000,
                "sliding_window": 16,
                "max_window_layers": 1,
                "use_sliding_window": False,
                "use_mrope": False,
            },
        ),
        # Qwen's own recipe for long contexts.
        (
            "qwen3",
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1000000.0},
            {
                "rope_theta": 1000000,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
            },
        ),
    ],
)
def test_older_config_keys_mean_the_same(
    tmp_path: Path, kind: str, rope: dict[str, Any], published: dict[str, Any]
) -> None:
    options = LLAMA | ({"head_dim": 8} if kind == "qwen3" else {})
    rope = {"rope_type": "default", "rope_theta": 10000.0} | rope
    reference = save_model(kind, options | {"rope_parameters": rope}, tmp_path)
    rewrite(tmp_path, ("rope_parameters", "layer_types", "sliding_window", "use_sliding_window"), **published)
    wanted = reference(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(logits(tmp_path), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "options", "key", "value"),
    [
        ("qwen2", {}, "use_mrope", True),
        ("qwen2", {}, "layer_types", ["full_attention"]),
        ("qwen2", {}, "layer_types", ["full_attention", "chunked_attention"]),
        ("qwen2", {}, "layer_types", ["full_attention", "sliding_attention"]),
        ("qwen3", {"use_sliding_window": True}, "sliding_window", 0),
        ("qwen3", {}, "head_dim", 9),
        ("mistral", {}, "sliding_window", -1),
        ("mistral", {}, "layer_types", ["full_attention", "sliding_attention"]),
        ("llama", {}, "logits_scaling", 2.0),
        ("llama", {}, "rope_parameters", {"full_attention": {"rope_type": "default"}}),
        ("llama", {}, "rope_parameters", {"rope_type": "longrope", "short_factor": [1.0]}),
        ("qwen3_moe", {}, "num_experts_per_tok", 7),
        ("qwen3_moe", {}, "mlp_only_layers", "none"),
        ("qwen3_moe", {}, "decoder_sparse_step", 0),
    ],
)
def test_a_value_that_cannot_be_run_is_named(
    tmp_path: Path, kind: str, options: dict[str, Any], key: str, value: object
) -> None:
    save_model(kind, (MOE if kind == "qwen3_moe" else LLAMA | {"head_dim": 8}) | options, tmp_path)
    remove = ("layer_types",) if key != "layer_types" else ()
    rewrite(tmp_path, remove, **{key: value})
    refused(tmp_path, "config.json", "short_factor" if "longrope" in str(value) else key)


@pytest.mark.parametrize("experts", [5, 7])
def test_another_number_of_experts_than_stored(tmp_path: Path, experts: int) -> None:
    save_model("qwen3_moe", MOE, tmp_path)
    rewrite(tmp_path, ("num_experts", "num_local_experts"), num_experts=experts)
    refused(tmp_path, "model.layers.0.mlp.experts", "6 experts", str(experts))


def test_an_expert_without_a_matrix(tmp_path: Path) -> None:
    save_model("qwen3_moe", MOE, tmp_path)
    file, name = tmp_path / "model.safetensors", "model.layers.1.mlp.experts.3.down_proj.weight"
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, file, {"format": "pt"})
    refused(tmp_path, name)


@pytest.mark.parametrize("quantize", ["int4", "int8", "w8a8"])
def test_experts_in_fewer_bits_stay_near(tmp_path: Path, quantize: str) -> None:
    options = MOE | {"hidden_size": 64, "moe_intermediate_size": 64, "num_experts_per_tok": 6}  # no routing to flip
    reference = save_model("qwen3_moe", options, tmp_path)
    wanted = reference(torch.tensor([IDS])).logits[0]
    likeness = torch.nn.functional.cosine_similarity(logits(tmp_path, quantize=quantize), wanted)
    assert likeness.mean().item() > (0.9 if quantize == "int4" else 0.999)
