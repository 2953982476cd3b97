"""What the generic path refuses, by name: it never answers wrongly in silence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.devices.cpu import CpuDevice
from coldplate_engine.models.decoder_runner import DecoderRunner
from coldplate_engine.models.generic.interface import PagedStep
from coldplate_engine.runner import ModelError
from coldplate_engine.step_timer import StepTimer
from support.random_models import GEMMA, GENERIC_VARIANTS, GPT_NEOX, LLAMA, save_model


def load(path: Path, dtype: str = "float32", **options: Any) -> DecoderRunner:
    return CpuDevice(threads=1).load(
        path, dtype, options.pop("max_model_len", None), lambda _phase, _share: None, **options
    )


def refused(path: Path, *parts: str, **options: Any) -> None:
    with pytest.raises(ModelError) as caught:
        load(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text


def save_config(path: Path, architecture: str, kind: str, options: dict[str, Any]) -> Path:
    """A model directory whose config is refused before a weight is read."""
    library: Any = transformers
    config = library.AutoConfig.for_model(kind, **options)
    config.architectures = [architecture]
    config.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("architecture", "kind", "options", "why"),
    [
        ("T5ForConditionalGeneration", "t5", {}, "language model"),
        ("BartForCausalLM", "bart", {"is_encoder_decoder": True}, "encoder-decoder"),
        ("MambaForCausalLM", "mamba", {}, "recurrent state"),
        (
            "Lfm2ForCausalLM",
            "lfm2",
            {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
            "layers of type conv",
        ),
        ("Qwen3NextForCausalLM", "qwen3_next", {}, "recurrent state"),
        ("BloomForCausalLM", "bloom", {}, "attention interface"),
    ],
)
def test_an_architecture_that_cannot_run(
    tmp_path: Path, architecture: str, kind: str, options: dict[str, Any], why: str
) -> None:
    refused(save_config(tmp_path, architecture, kind, options), architecture, why, "config.json")


def test_attention_sinks(tmp_path: Path) -> None:
    options = LLAMA | {
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "head_dim": 8,
        "layer_types": ["full_attention"] * 2,
    }
    save_model("gpt_oss", options, tmp_path)
    refused(tmp_path, "GptOssForCausalLM", "attention sinks")


def test_a_mask_of_another_kind(tmp_path: Path) -> None:
    options = LLAMA | {"use_bidirectional_attention": True, "head_dim": 8, "query_pre_attn_scalar": 8}
    save_model("gemma3_text", options | {"sliding_window": 4}, tmp_path)
    refused(tmp_path, "Gemma3ForCausalLM", "mask")


def test_an_attention_that_is_not_what_its_interface_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for architectures that do more than they say: the attention is given another scale."""
    save_model("gpt_neox", GPT_NEOX, tmp_path)
    attend = PagedStep.attend

    def otherwise(step: PagedStep, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return attend(step, layer, q, k, v, scale * 1.5)

    monkeypatch.setattr(PagedStep, "attend", otherwise)
    refused(tmp_path, "GPTNeoXForCausalLM", "answers otherwise")


def test_longrope_runs_within_the_original_context_only(tmp_path: Path) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 32,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    }
    options = LLAMA | {"rope_parameters": rope, "original_max_position_embeddings": 32, "pad_token_id": 0}
    save_model("phi3", options, tmp_path)
    refused(tmp_path, "Phi3ForCausalLM", "longrope", "32", "--max-model-len")
    assert load(tmp_path, max_model_len=32).facts.max_model_len == 32


@pytest.mark.parametrize("damage", ["missing", "foreign", "shape"])
def test_a_wrong_tensor_is_named(tmp_path: Path, damage: str) -> None:
    save_model("gpt_neox", GPT_NEOX, tmp_path)
    name = "gpt_neox.layers.1.mlp.dense_4h_to_h.weight"
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    if damage == "missing":
        del tensors[name]
    elif damage == "shape":
        tensors[name] = tensors[name][:7].contiguous()
    else:
        name = "gpt_neox.layers.9.mlp.dense_4h_to_h.weight"
        tensors[name] = torch.zeros(3)
    save_file(tensors, file, {"format": "pt"})
    refused(tmp_path, name if damage != "shape" else "GPTNeoXForCausalLM")


def test_a_value_the_config_class_refuses(tmp_path: Path) -> None:
    save_model("gpt_neox", GPT_NEOX, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_size": "wide"}))
    refused(tmp_path, "config.json", "hidden_size")


def test_quantize_is_refused(tmp_path: Path) -> None:
    save_model("gpt_neox", GPT_NEOX, tmp_path)
    refused(tmp_path, "GPTNeoXForCausalLM", "plain weights only", "int8", quantize="int8")


def test_facts(tmp_path: Path) -> None:
    kind, options = GENERIC_VARIANTS["deepseek-v2"]
    reference = save_model(kind, options, tmp_path)
    runner = load(tmp_path)
    assert runner.facts.architecture == "DeepseekV2ForCausalLM"
    assert runner.facts.parameter_count == reference.num_parameters()
    assert runner.facts.weight_bytes >= 4 * runner.facts.parameter_count
    assert runner.kv_bytes_per_token() == 2 * 2 * 6 * 20 * 4  # values are padded to the keys' width


@pytest.mark.parametrize("kind", ["gpt_neox", "gemma"])
def test_bfloat16_stays_near(tmp_path: Path, kind: str) -> None:
    reference = save_model(kind, GPT_NEOX if kind == "gpt_neox" else GEMMA, tmp_path)
    runner = load(tmp_path, "bfloat16")
    runner.allocate_kv(8, 4)
    ids = list(range(3, 23))
    got = runner.execute(StepBatch([StreamSlice(0, ids, 0, [5, 2, 7, 1, 3], len(ids))]), StepTimer())
    wanted = reference(torch.tensor([ids])).logits[0]
    assert torch.nn.functional.cosine_similarity(got, wanted).min().item() > 0.99
