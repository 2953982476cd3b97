"""Imported checkpoints hold the source's exact values, and transformers computes the same with them."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors import safe_open
from transformers import GPT2Config, Qwen2Config, Qwen3Config

from coldplate_engine.importing.gguf_dense import llama3_frequency_factors
from coldplate_engine.importing.gguf_file import GgufFile
from coldplate_engine.importing.gguf_import import ImportFailed, import_gguf
from support import gguf_files
from support.gguf_models import VOCABULARY, AutoModel, arrays, tiny_llama

PROMPT = [5, 17, 80, 41, 200, 9]


def no_progress(_phase: str, _share: float) -> None:
    pass


def stored(directory: Path) -> dict[str, torch.Tensor]:
    with safe_open(directory / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping


def greedy(model: Any) -> list[int]:
    with torch.inference_mode():
        tokens = model.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=12, eos_token_id=None)
    ids: list[int] = tokens[0].tolist()
    return ids


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", "float32"), ("F16", "float16"), ("Q8_0", "float32"), ("Q4_1", "float32")]
)
def test_llama_values_and_greedy_tokens(tmp_path: Path, kind: str, dtype: str) -> None:
    model = tiny_llama()
    state = arrays(model)
    gguf_files.write_llama(tmp_path / "m.gguf", model.config, state, kind)
    directory = import_gguf(tmp_path / "m.gguf", tmp_path / "out", progress=no_progress)

    # Blocks run along a row and the RoPE order moves whole rows, so quantising commutes with it.
    expected = {name: gguf_files.through(values, kind) if values.ndim > 1 else values for name, values in state.items()}
    found = stored(directory)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == torch.from_numpy(values).dtype
        np.testing.assert_array_equal(found[name].numpy(), values, err_msg=name)

    loaded = AutoModel.from_pretrained(directory)
    assert str(loaded.dtype) == f"torch.{dtype}"
    loaded = loaded.to(torch.float32)
    reference = tiny_llama()
    reference.load_state_dict(
        {name: torch.from_numpy(v.astype(np.float32)) for name, v in expected.items()}, strict=False
    )
    assert greedy(loaded) == greedy(reference)


def test_llama_with_biases_and_its_own_output_matrix(tmp_path: Path) -> None:
    model = tiny_llama(tied=False, bias=True)
    gguf_files.write_llama(tmp_path / "m.gguf", model.config, arrays(model, tied=False))
    loaded = AutoModel.from_pretrained(import_gguf(tmp_path / "m.gguf", tmp_path / "out", progress=no_progress))
    with torch.inference_mode():
        assert torch.equal(loaded(torch.tensor([PROMPT])).logits, model(torch.tensor([PROMPT])).logits)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("make", [Qwen2Config, Qwen3Config])
def test_qwen_logits(tmp_path: Path, make: Any, scaled: bool, tied: bool) -> None:
    torch.manual_seed(5)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 50000.0}
    if scaled:
        rope |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    config = make(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24 if make is Qwen3Config else 16,
        max_position_embeddings=128,
        rope_parameters=rope,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = AutoModel.from_config(config)
    model.eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "_norm" in name:
            torch.nn.init.normal_(parameter)
    gguf_files.write_qwen(tmp_path / "m.gguf", config, arrays(model, tied=tied))
    loaded = AutoModel.from_pretrained(import_gguf(tmp_path / "m.gguf", tmp_path / "out", progress=no_progress))
    with torch.inference_mode():
        assert torch.equal(loaded(torch.tensor([PROMPT])).logits, model(torch.tensor([PROMPT])).logits)


def test_gpt2_logits(tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2)
    model = AutoModel.from_config(config).eval()
    gguf_files.write_gpt2(tmp_path / "m.gguf", config, arrays(model))
    loaded = AutoModel.from_pretrained(import_gguf(tmp_path / "m.gguf", tmp_path / "out", progress=no_progress))
    with torch.inference_mode():
        assert torch.equal(loaded(torch.tensor([PROMPT])).logits, model(torch.tensor([PROMPT])).logits)


def test_an_output_matrix_written_twice_is_tied(tmp_path: Path) -> None:
    model = tiny_llama()
    gguf_files.write_llama(tmp_path / "m.gguf", model.config, arrays(model, tied=False))
    directory = import_gguf(tmp_path / "m.gguf", tmp_path / "out", progress=no_progress)
    assert "lm_head.weight" not in stored(directory)
    assert AutoModel.from_pretrained(directory).config.tie_word_embeddings


@pytest.mark.parametrize("kind", ["BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_values_of_each_type(tmp_path: Path, kind: str) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    values = np.random.default_rng(1).normal(size=(6, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", quantize(values, quantization), raw_dtype=quantization)
    gguf_files.finish(writer)
    file = GgufFile(tmp_path / "m.gguf")
    found = file.values(file.tensors["t"])
    if kind == "BF16":  # bit patterns
        found = (found.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(found, gguf_files.through(values, kind))


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_quants(tmp_path: Path, kind: str) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    block_bytes = gguf.GGML_QUANT_SIZES[quantization][1]
    blocks = np.random.default_rng(2).integers(0, 60, size=(3, 2 * block_bytes), dtype=np.uint8)  # finite scales
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", blocks, raw_dtype=quantization)
    gguf_files.finish(writer)
    file = GgufFile(tmp_path / "m.gguf")
    found = file.values(file.tensors["t"])
    assert found.shape == (3, 512)
    for row in range(3):
        np.testing.assert_array_equal(found[row], dequantize(blocks[row : row + 1], quantization)[0])


def llama3_file(path: Path, factors: Any) -> Any:
    model = tiny_llama()
    source = path.with_suffix(".base")
    gguf_files.write_llama(source, model.config, {**arrays(model)})
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type)
    writer.add_tensor("rope_freqs.weight", np.asarray(factors, dtype=np.float32))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    gguf_files.finish(writer)
    return model


def test_llama3_rope_scaling_is_recognised(tmp_path: Path) -> None:
    factors = llama3_frequency_factors(16, 50000.0, 8.0, 8192)
    llama3_file(tmp_path / "m.gguf", factors)
    loaded = AutoModel.from_pretrained(import_gguf(tmp_path / "m.gguf", tmp_path / "out", progress=no_progress))
    plain = 50000.0 ** -(np.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(loaded.model.rotary_emb.inv_freq.numpy(), plain / factors, rtol=1e-5)
    assert factors.max() == 8.0


def test_other_rope_factors_are_refused(tmp_path: Path) -> None:
    llama3_file(tmp_path / "m.gguf", np.linspace(1, 8, 8))
    with pytest.raises(ImportFailed, match=r"rope_freqs\.weight"):
        import_gguf(tmp_path / "m.gguf", tmp_path / "out", progress=no_progress)
