"""GGUF files served as they are: block formats keep their bits and values, and bad files are refused by name."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.devices.cpu import CpuDevice
from coldplate_engine.importing.gguf_import import import_gguf, link_gguf
from coldplate_engine.kernels.torch_linear import PlainLinear
from coldplate_engine.models.decoder_runner import DecoderRunner, load_decoder
from coldplate_engine.models.layers import Linear
from coldplate_engine.runner import ModelError
from coldplate_engine.step_timer import StepTimer
from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.gguf_blocks import decode_blocks
from coldplate_engine.weights.quantized import Int4Weight, Int8Weight, Weight
from coldplate_engine.weights.reader import CheckpointReader
from support import gguf_files
from support.gguf_models import VOCABULARY, AutoModel, arrays, tiny_llama

EXACT, CHANGED = ("Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q8_0"), ("Q5_1", "Q5_K", "Q6_K")
# The kernels round a linear's inputs to 8 bits: about 0.5 % a product, over four products deep in each of two layers.
EIGHT_BIT_ACTIVATIONS = 0.03


@pytest.mark.parametrize("kind", [*EXACT, *CHANGED])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 4))
def test_blocks_decode_to_what_gguf_says(kind: str, seed: int, rows: int) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
    blocks = np.random.default_rng(seed).integers(0, 256, (rows * 2, block_bytes), dtype=np.uint8)
    halves = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q6_K": (208,)}
    for at in halves.get(kind, (0, 2)):
        blocks[:, at + 1] &= 0xBB  # below 2, so no infinite or absent scale
    if seed % 3 == 0:
        blocks[0, :2] = 0  # a scale of zero (in Q6_K part of its codes)
    expected = torch.from_numpy(dequantize(blocks.reshape(rows, -1), quantization))
    weight = decode_blocks(kind, torch.from_numpy(blocks.reshape(-1)), (rows, 2 * block))
    assert isinstance(weight, Int4Weight if kind.startswith("Q4") else Int8Weight)
    assert weight.group_size == 32
    error = (weight.dequantized() - expected).abs().view(rows, -1, 32)
    largest = expected.abs().view(rows, -1, 32).amax(dim=2, keepdim=True)
    assert (error <= largest * (1e-5 if kind in EXACT else 0.501 / 127)).all()


def logits(model: Path, *, exact: bool = True) -> torch.Tensor:
    """``exact``: with the weights' exact values in float32, instead of the device's kernels."""

    def exact_linear(weight: Weight, bias: torch.Tensor | None) -> Linear:
        return PlainLinear(weight if isinstance(weight, torch.Tensor) else weight.dequantized(), bias)

    runner: DecoderRunner
    if exact:
        runner = load_decoder(model, torch.float32, None, exact_linear, lambda *_: None, lambda: None)
    else:
        runner = CpuDevice(threads=1).load(model, "float32", None, lambda *_: None)
    runner.allocate_kv(4, 4)
    return runner.execute(StepBatch([StreamSlice(0, [5, 17, 80, 41, 200, 9], 0, [2, 0], 6)]), StepTimer())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_llama_logits_are_those_of_the_dequantised_model(tmp_path: Path, kind: str, tied: bool) -> None:
    model = tiny_llama(tied=tied)
    gguf_files.write_llama(tmp_path / "m.gguf", model.config, arrays(model, tied=tied), kind)
    folder = import_gguf(tmp_path / "m.gguf", tmp_path / "imported", progress=lambda *_: None)
    expected = logits(folder)
    bound = 0.02 if kind == "Q5_1" else 1e-5
    assert (logits(tmp_path / "m.gguf") - expected).norm() <= bound * expected.norm()
    kernels = logits(tmp_path / "m.gguf", exact=False)
    assert (kernels - expected).norm() <= (EIGHT_BIT_ACTIVATIONS + bound) * expected.norm()


def test_gpt2_in_blocks(tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2)
    model = AutoModel.from_config(config).eval()
    for kind in ("F32", "Q8_0"):
        path = tmp_path / f"{kind}.gguf"
        gguf_files.write_gpt2(path, config, arrays(model, tied=True), kind)
        expected = logits(import_gguf(path, tmp_path / kind, progress=lambda *_: None))
        assert (logits(path) - expected).norm() <= 1e-5 * expected.norm()


def test_bits_are_kept_and_a_folder_may_hold_the_file(tmp_path: Path) -> None:
    model = tiny_llama(tied=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    gguf_files.write_llama(folder / "m.gguf", model.config, arrays(model, tied=True), "Q4_1")
    config = ModelConfig(folder)
    with CheckpointReader(config, torch.float32, lambda *_: None) as weights:
        embedding = weights.get("model.embed_tokens.weight", (VOCABULARY, 64))
        assert isinstance(weights.linear("model.layers.0.self_attn.q_proj", (64, 64)), Int4Weight)
        head = weights.head(embedding, tied=True)
        assert isinstance(head, Int4Weight)
        assert torch.equal(head.dequantized(), embedding)
        with pytest.raises(ModelError, match=r"m\.gguf.*q_proj\.weight must have shape \[32, 64\], found \[64, 64\]"):
            weights.linear("model.layers.0.self_attn.q_proj", (32, 64))
        with pytest.raises(ModelError, match=r"m\.gguf: tensor model\.absent\.weight is missing"):
            weights.linear("model.absent", (32, 64))
    facts = CpuDevice(threads=1).load(folder, "float32", None, lambda *_: None).facts
    assert facts.quantization == "gguf"
    assert facts.end_of_text_ids == {0, 2}
    assert facts.parameter_count == sum(parameter.numel() for parameter in model.parameters())


def test_two_files_in_a_folder(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    refused(tmp_path, "2 GGUF files", "a.gguf", "b.gguf")


def test_what_is_in_blocks_is_not_converted_and_floats_are(tmp_path: Path) -> None:
    model = tiny_llama(tied=True)
    for kind in ("F16", "Q4_0"):
        gguf_files.write_llama(tmp_path / f"{kind}.gguf", model.config, arrays(model, tied=True), kind)
    load = CpuDevice(threads=1).load
    assert load(tmp_path / "F16.gguf", "float32", None, lambda *_: None, "int4").facts.quantization == "int4"
    with pytest.raises(ModelError, match=r"--quantize int4 is for plain weights"):
        load(tmp_path / "Q4_0.gguf", "float32", None, lambda *_: None, "int4")


def test_the_revision_follows_the_header(tmp_path: Path) -> None:
    model = tiny_llama(tied=True)
    seen = set()
    for kind in ("F32", "Q4_0", "Q4_1"):
        gguf_files.write_llama(tmp_path / "m.gguf", model.config, arrays(model, tied=True), kind)
        for _ in range(2):
            with CheckpointReader(ModelConfig(tmp_path), torch.float32, lambda *_: None) as weights:
                seen.add(weights.revision())
    assert len(seen) == 3


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        logits(path, exact=False)
    text = str(caught.value)
    assert "\n" not in text
    for part in (path.name, *parts):
        assert part in text


def test_bad_files(tmp_path: Path) -> None:
    model = tiny_llama(tied=True)
    good = tmp_path / "good.gguf"
    gguf_files.write_llama(good, model.config, arrays(model, tied=True), "Q4_1")
    whole = good.read_bytes()
    for name, content, reason in (
        ("page.gguf", b"<!DOCTYPE html><html>404</html>", "a web page"),
        ("short.gguf", whole[:24], "is cut"),
        ("half.gguf", whole[: len(whole) // 2], "is cut"),
        ("empty.gguf", b"", "not a GGUF file"),
    ):
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, reason)
    writer = gguf.GGUFWriter(tmp_path / "novel.gguf", "novel")
    gguf_files.add_byte_level_tokenizer(writer)
    gguf_files.finish(writer)
    refused(tmp_path / "novel.gguf", "'novel'", "llama")


def test_a_linked_folder_serves_the_files_own_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDPLATE_CACHE", str(tmp_path / "cache"))
    model, file = tiny_llama(tied=True), tmp_path / "m.gguf"
    gguf_files.write_llama(file, model.config, arrays(model, tied=True), "Q4_1")
    folder = link_gguf(file, progress=lambda *_: None)
    assert {path.name for path in folder.iterdir()} >= {"config.json", "tokenizer.json", "model.gguf"}
    assert torch.equal(logits(folder), logits(file))
    assert link_gguf(file, progress=lambda *_: None) == folder
    gguf_files.write_llama(file, model.config, arrays(model, tied=True), "Q8_0")
    other = link_gguf(file, progress=lambda *_: None)
    assert other != folder
    assert torch.equal(logits(other), logits(file))
