"""Model directories that load, and those that are refused, with the file and the reason named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.devices.cpu import CpuDevice
from coldplate_engine.models.decoder_runner import DecoderRunner
from coldplate_engine.runner import ModelError
from coldplate_engine.step_timer import StepTimer
from coldplate_engine.weights.safetensors import INDEX_FILE, SINGLE_FILE

WIDTH, INNER, VOCABULARY, LAYERS = 16, 24, 40, 2
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
Edit = Callable[[Path], None]


def tensors() -> dict[str, torch.Tensor]:
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (VOCABULARY, WIDTH),
    }
    for index in range(LAYERS):
        prefix = f"model.layers.{index}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (WIDTH,),
            f"{prefix}.post_attention_layernorm.weight": (WIDTH,),
            f"{prefix}.self_attn.q_proj.weight": (WIDTH, WIDTH),
            f"{prefix}.self_attn.k_proj.weight": (WIDTH // 2, WIDTH),
            f"{prefix}.self_attn.v_proj.weight": (WIDTH // 2, WIDTH),
            f"{prefix}.self_attn.o_proj.weight": (WIDTH, WIDTH),
            f"{prefix}.mlp.gate_proj.weight": (INNER, WIDTH),
            f"{prefix}.mlp.up_proj.weight": (INNER, WIDTH),
            f"{prefix}.mlp.down_proj.weight": (WIDTH, INNER),
        }
    draw = np.random.default_rng(0)
    return {name: torch.from_numpy(draw.standard_normal(shape, dtype=np.float32)) for name, shape in shapes.items()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors(), tmp_path / SINGLE_FILE)
    return tmp_path


@pytest.fixture
def sharded(model: Path) -> Path:
    everything = load_file(model / SINGLE_FILE)
    (model / SINGLE_FILE).unlink()
    names = sorted(everything)
    weight_map: dict[str, str] = {}
    for shard in range(3):
        file = f"model-0000{shard + 1}-of-00003.safetensors"
        part = {name: everything[name] for name in names[shard::3]}
        save_file(part, model / file)
        weight_map |= dict.fromkeys(part, file)
    (model / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return model


def configure(model: Path, **changes: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | changes))


def change_tensors(model: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    stored = {name: tensor.clone() for name, tensor in load_file(model / SINGLE_FILE).items()}
    edit(stored)
    save_file(stored, model / SINGLE_FILE)


def load(model: Path, dtype: str = "float32", max_model_len: int | None = None) -> DecoderRunner:
    return CpuDevice(threads=1).load(model, dtype, max_model_len, lambda _phase, _share: None)


def logits(model: Path) -> torch.Tensor:
    runner = load(model)
    runner.allocate_kv(4, 4)
    return runner.execute(StepBatch([StreamSlice(0, [3, 1, 4, 1, 5], 0, [2, 0], 1)]), StepTimer())


def refused(model: Path, *parts: str, **options: Any) -> str:
    """The refusal, which is one line and holds all ``parts``."""
    with pytest.raises(ModelError) as caught:
        load(model, **options)
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text
    return text


def test_shards_load_like_one_file(model: Path, request: pytest.FixtureRequest) -> None:
    whole = logits(model)
    assert torch.equal(logits(request.getfixturevalue("sharded")), whole)


def test_progress_rises_to_one(sharded: Path) -> None:
    seen: list[float] = []
    CpuDevice(threads=1).load(sharded, "float32", None, lambda _phase, share: seen.append(share))
    assert seen == sorted(seen)
    assert seen[0] > 0
    assert seen[-1] == 1.0


def test_stored_half_precision_is_widened(model: Path) -> None:
    change_tensors(model, lambda t: t.update({name: value.bfloat16() for name, value in t.items()}))
    assert load(model).facts.dtype == "float32"


def test_no_directory(tmp_path: Path) -> None:
    refused(tmp_path / "absent", str(tmp_path / "absent"), "no such model directory")


def test_no_config(model: Path) -> None:
    (model / "config.json").unlink()
    refused(model, "config.json", "no such file")


@pytest.mark.parametrize("text", ["", "{", "[]", "\ufffe"])
def test_broken_config(model: Path, text: str) -> None:
    (model / "config.json").write_text(text, encoding="utf-16")
    refused(model, "config.json")
    (model / "config.json").write_text(text)
    refused(model, "config.json")


def test_no_weights_names_what_lies_there(model: Path) -> None:
    (model / SINGLE_FILE).rename(model / "pytorch_model.bin")
    refused(model, SINGLE_FILE, "pytorch_model.bin")


def test_missing_shard(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    refused(sharded, "model-00002-of-00003.safetensors", "missing", INDEX_FILE)


def test_an_index_may_not_leave_its_directory(sharded: Path) -> None:
    (sharded / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    refused(sharded, INDEX_FILE, "../a.safetensors")


def test_broken_index(sharded: Path) -> None:
    (sharded / INDEX_FILE).write_text('{"weight_map": []}')
    refused(sharded, INDEX_FILE, "weight_map")


@pytest.mark.parametrize("cut", [1, 100])
def test_cut_shard(sharded: Path, cut: int) -> None:
    path = sharded / "model-00003-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-cut])
    refused(sharded, path.name, "not a whole safetensors file")


@pytest.mark.parametrize(
    "content",
    [b"", b"\x10", b"<html><body>404</body></html>", b"\x40" + bytes(7) + b"{", b"\x02" + bytes(7) + b"[]",
     b"\x08" + bytes(7) + b'{"a":{}}', b'\x0f' + bytes(7) + b'{"__metadata__"'],
)  # fmt: skip
def test_foreign_file(model: Path, content: bytes) -> None:
    (model / SINGLE_FILE).write_bytes(content)
    refused(model, SINGLE_FILE, "safetensors file")


def test_missing_tensor(model: Path) -> None:
    change_tensors(model, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    refused(model, "model.layers.1.mlp.up_proj.weight", "missing")


def test_wrong_shape(model: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    change_tensors(model, lambda t: t.update({name: torch.zeros(16, 8)}))
    refused(model, name, "[8, 16]", "[16, 8]", SINGLE_FILE)


def test_integer_tensor(model: Path) -> None:
    change_tensors(model, lambda t: t.update({"model.norm.weight": torch.zeros(WIDTH, dtype=torch.int8)}))
    refused(model, "model.norm.weight", "I8")


def test_tied_with_and_without_a_head_are_the_same(model: Path) -> None:
    configure(model, tie_word_embeddings=True)
    change_tensors(model, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    with_head, count = logits(model), load(model).facts.parameter_count
    change_tensors(model, lambda t: t.pop("lm_head.weight"))
    assert torch.equal(logits(model), with_head)
    assert load(model).facts.parameter_count == count


def test_a_head_that_differs_from_the_embedding_is_obeyed(model: Path) -> None:
    untied = logits(model)
    configure(model, tie_word_embeddings=True)
    assert torch.equal(logits(model), untied)


def test_untied_without_head(model: Path) -> None:
    change_tensors(model, lambda t: t.pop("lm_head.weight"))
    refused(model, "lm_head.weight", "tie_word_embeddings")


def test_unsupported_architecture_lists_the_supported(model: Path) -> None:
    configure(model, architectures=["NovelForCausalLM"])
    text = refused(model, "NovelForCausalLM", "LlamaForCausalLM", "GPT2LMHeadModel")
    assert "trust_remote_code" not in text


@pytest.mark.parametrize("architectures", [None, [], ["A", "B"], "LlamaForCausalLM"])
def test_architectures_must_name_one(model: Path, architectures: object) -> None:
    configure(model, architectures=architectures)
    refused(model, "architectures")


def test_code_of_a_checkpoint_never_runs(model: Path) -> None:
    marker = model / "marker"
    (model / "modeling_novel.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    auto_map = {"AutoModelForCausalLM": "modeling_novel.NovelForCausalLM"}
    configure(model, auto_map=auto_map)
    assert load(model).facts.architecture == "LlamaForCausalLM"  # ours: the code is not needed
    configure(model, architectures=["NovelForCausalLM"])
    refused(model, "NovelForCausalLM", "auto_map", "trust_remote_code")
    assert not marker.exists()


@pytest.mark.parametrize("method", ["nope", None, 4, ["awq"]])
def test_unknown_quantization_method(model: Path, method: object) -> None:
    configure(model, quantization_config={"quant_method": method})
    refused(model, repr(method), "quantization", "awq")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", None),
        ("hidden_size", "16"),
        ("num_hidden_layers", 0),
        ("num_attention_heads", True),
        ("num_key_value_heads", 3),
        ("num_attention_heads", 3),
        ("head_dim", 7),
        ("vocab_size", -1),
        ("rms_norm_eps", float("nan")),
        ("hidden_act", "mish"),
        ("tie_word_embeddings", "yes"),
        ("attention_bias", 1),
        ("eos_token_id", "two"),
        ("rope_scaling", {"rope_type": "spiral", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "yarn", "factor": -2.0}),
        ("partial_rotary_factor", 0.5),
        ("attn_logit_softcapping", 30.0),
        ("sliding_window", 4),
        ("rope_scaling", {"rope_type": "linear", "factor": 0}),
        ("rope_scaling", "linear"),
    ],
)
def test_unusable_config_value(model: Path, key: str, value: object) -> None:
    configure(model, **{key: value})
    shown = value.get("factor") or value if isinstance(value, dict) else value
    text = refused(model, "config.json")
    assert key in text or "rope_type" in text or "factor" in text
    assert "wavy" in text or "0" in text or repr(shown) in text


def test_end_of_text_ids_of_both_files_join(model: Path) -> None:
    (model / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert load(model).facts.end_of_text_ids == {2, 7, 9}
    configure(model, eos_token_id=None)
    assert load(model).facts.end_of_text_ids == {7, 9}
    (model / "generation_config.json").write_text('{"eos_token_id": [7.5]}')
    refused(model, "generation_config.json", "eos_token_id")


def test_revision_follows_files(model: Path) -> None:
    def revision() -> str:
        return load(model).facts.revision

    first = revision()
    assert revision() == first
    (model / "chat_template.jinja").write_text("{{ messages }}")
    second = revision()
    configure(model, note="x")
    third = revision()
    change_tensors(model, lambda t: t.update({"extra": torch.zeros(3)}))
    assert len({first, second, third, revision()}) == 4


@pytest.mark.parametrize("length", [0, -1, 65])
def test_max_model_len_out_of_range(model: Path, length: int) -> None:
    refused(model, "max_model_len", str(length), "64", max_model_len=length)


def test_unknown_dtype(model: Path) -> None:
    refused(model, "'int3'", "float32", dtype="int3")


def test_gpt2_without_prefix_and_with_variants_it_cannot_run(tmp_path: Path) -> None:
    config = {
        "architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 8,
        "vocab_size": 10,
    }  # fmt: skip
    shapes = {
        "wte.weight": (10, 8), "wpe.weight": (8, 8), "ln_f.weight": (8,), "ln_f.bias": (8,),
        "h.0.ln_1.weight": (8,), "h.0.ln_1.bias": (8,), "h.0.ln_2.weight": (8,), "h.0.ln_2.bias": (8,),
        "h.0.attn.c_attn.weight": (8, 24), "h.0.attn.c_attn.bias": (24,), "h.0.attn.c_proj.weight": (8, 8),
        "h.0.attn.c_proj.bias": (8,), "h.0.mlp.c_fc.weight": (8, 32), "h.0.mlp.c_fc.bias": (32,),
        "h.0.mlp.c_proj.weight": (32, 8), "h.0.mlp.c_proj.bias": (8,),
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    plain = {name: torch.ones(shape) for name, shape in shapes.items()}
    save_file(plain, tmp_path / SINGLE_FILE)
    without = logits(tmp_path)
    save_file({f"transformer.{name}": tensor for name, tensor in plain.items()}, tmp_path / SINGLE_FILE)
    assert torch.equal(logits(tmp_path), without)
    configure(tmp_path, scale_attn_by_inverse_layer_idx=True)
    refused(tmp_path, "scale_attn_by_inverse_layer_idx")
