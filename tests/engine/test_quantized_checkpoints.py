"""Checkpoints in fewer bits compute what their dequantised twins do; what cannot be right is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.devices.cpu import CpuDevice
from coldplate_engine.kernels.torch_linear import PlainLinear
from coldplate_engine.models.decoder_runner import load_decoder
from coldplate_engine.models.layers import Linear
from coldplate_engine.runner import ModelError
from coldplate_engine.step_timer import StepTimer
from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.quantized import Int4Weight, Int8Weight, Weight
from coldplate_engine.weights.reader import CheckpointReader
from support import quantized_files as files
from support.quantized_files import Layout

LAYOUTS = {
    "awq": files.awq(),
    "awq whole rows": files.awq(-1),
    "gptq": files.gptq(),
    "gptq v2": files.gptq(16, "gptq_v2"),
    "w4a16": files.packed(),
    "w4a16 channel": files.packed(group=-1),
    "w4a16 asymmetric": files.packed(symmetric=False),
    "w4a16 old zero points": files.packed(symmetric=False, old_zeros=True),
    "w8a16 packed": files.packed(8),
    "w8a16": files.int8(),
    "w8a16 naive": files.int8(kind="naive-quantized", strategy="tensor"),
    "w8a8": files.int8(activations=True),
}
# Inputs rounded to 1/127 of the largest of their block or token: about 0.5 % a product, over four products deep in each
# of two layers.
EIGHT_BIT_ACTIVATIONS = 0.03
NAME = "model.layers.1.mlp.up_proj"


def logits(folder: Path, *, exact: bool = False) -> torch.Tensor:
    """``exact``: with the weights' exact values in float32, instead of the device's kernels."""

    def exact_linear(weight: Weight, bias: torch.Tensor | None) -> Linear:
        return PlainLinear(weight if isinstance(weight, torch.Tensor) else weight.dequantized(), bias)

    if exact:
        runner = load_decoder(folder, torch.float32, None, exact_linear, lambda *_: None, lambda: None)
    else:
        runner = CpuDevice(threads=1).load(folder, "float32", None, lambda *_: None)
    runner.allocate_kv(4, 4)
    return runner.execute(StepBatch([StreamSlice(0, [3, 1, 4, 1, 5, 9, 2, 6], 0, [2, 0], 8)]), StepTimer())


def reader(folder: Path) -> CheckpointReader:
    return CheckpointReader(ModelConfig(folder), torch.float32, lambda _phase, _share: None)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_weights_are_those_that_were_stored(tmp_path: Path, layout: Layout) -> None:
    quantized, plain = files.write(tmp_path, layout)
    twin = load_file(plain / "model.safetensors")
    with reader(quantized) as weights:
        for name, shape in files.linears().items():
            weight = weights.linear(name, shape)
            assert isinstance(weight, Int4Weight | Int8Weight)
            assert torch.equal(weight.dequantized(), twin[f"{name}.weight"])
        head = weights.head(weights.get("model.embed_tokens.weight", (files.VOCABULARY, files.WIDTH)), tied=False)
        assert isinstance(head, torch.Tensor)
        assert weights.quantization == layout.quantization_config["quant_method"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_logits_are_those_of_the_twin(tmp_path: Path, name: str) -> None:
    quantized, plain = files.write(tmp_path, LAYOUTS[name])
    expected = logits(plain, exact=True)
    assert torch.equal(logits(quantized, exact=True), expected)
    assert (logits(quantized) - expected).norm() <= EIGHT_BIT_ACTIVATIONS * expected.norm()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([2, 4, 8]), st.integers(1, 5), st.integers(1, 40))
def test_packing_goes_both_ways(seed: int, bits: int, rows: int, columns: int) -> None:
    from coldplate_engine.weights.packing import unpack_first, unpack_last

    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (rows, columns), generator=generator)
    words = files.pack_last(codes, bits)
    assert torch.equal(unpack_last(words, bits)[:, :columns].long(), codes)
    assert torch.equal(unpack_first(words.t().contiguous(), bits)[:columns].long(), codes.t())


def test_layers_that_are_not_converted_stay_plain(tmp_path: Path) -> None:
    for layout in (
        files.awq(modules_to_not_convert=["mlp.up_proj"]),
        files.packed(ignore=["lm_head", r"re:.*up_proj"]),
    ):
        folder = tmp_path / str(layout.quantization_config["quant_method"])
        folder.mkdir()
        quantized, plain = files.write(folder, layout)
        twin = load_file(plain / "model.safetensors")
        stored = load_file(quantized / "model.safetensors")
        kept = {name: tensor for name, tensor in stored.items() if ".up_proj." not in name}
        kept |= {name: tensor for name, tensor in twin.items() if ".up_proj." in name}
        save_file(kept, quantized / "model.safetensors")
        assert torch.allclose(logits(quantized, exact=True), logits(plain, exact=True), atol=1e-4)
        with reader(quantized) as weights:
            assert isinstance(weights.linear(NAME, (files.INNER, files.WIDTH)), torch.Tensor)


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        logits(folder)
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text


def weights_of(changes: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["config_groups"]["group_0"]["weights"].update(changes)


def inputs_of(changes: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["config_groups"]["group_0"]["input_activations"].update(changes)


@pytest.mark.parametrize(
    ("layout", "change", "parts"),
    [
        ("awq", {"bits": 3}, ("bits", "3")),
        ("awq", {"bits": True}, ("bits", "True")),
        ("awq", {"version": "gemv"}, ("version", "gemv")),
        ("awq", {"zero_point": False}, ("zero_point", "False")),
        ("awq", {"group_size": 48}, ("q_proj.qweight", "48", "64")),
        ("awq", {"group_size": 0}, ("group_size", "0")),
        ("awq", {"group_size": None}, ("group_size", "None")),
        ("awq", {"modules_to_not_convert": "lm_head"}, ("modules_to_not_convert", "lm_head")),
        ("gptq", {"bits": 8}, ("bits", "8")),
        ("gptq", {"desc_act": True}, ("desc_act", "True")),
        ("gptq", {"checkpoint_format": "marlin"}, ("checkpoint_format", "marlin")),
        ("w4a16", {"format": "float-quantized"}, ("format", "float-quantized", "pack-quantized")),
        ("w4a16", {"config_groups": None}, ("config_groups", "None")),
        ("w4a16", {"transform_config": {"config_groups": {"R1": {}}}}, ("transform_config", "R1")),
        ("w4a16", {"sparsity_config": {"format": "sparse-24-bitmask"}}, ("sparsity_config", "sparse-24")),
        ("w4a16", weights_of({"num_bits": 3}), ("num_bits", "3")),
        ("w4a16", weights_of({"type": "float"}), ("type", "float")),
        ("w4a16", weights_of({"actorder": "group"}), ("actorder", "group")),
        ("w4a16", weights_of({"strategy": "block"}), ("strategy", "block")),
        ("w4a16", weights_of({"group_size": 20}), ("weight_packed", "20", "64")),
        ("w8a8", weights_of({"symmetric": False}), ("symmetric", "False")),
        ("w8a8", inputs_of({"dynamic": False}), ("input_activations.dynamic", "False")),
        ("w8a8", inputs_of({"strategy": "tensor"}), ("input_activations.strategy", "tensor")),
        ("w8a8", inputs_of({"num_bits": 4}), ("input_activations.num_bits", "4")),
    ],
)  # fmt: skip
def test_settings_that_are_not_supported(tmp_path: Path, layout: str, change: Any, parts: tuple[str, ...]) -> None:
    folder, _ = files.write(tmp_path, LAYOUTS[layout])
    config = json.loads((folder / "config.json").read_text())
    if callable(change):
        change(config["quantization_config"])
    else:
        config["quantization_config"].update(change)
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, *parts)


def drop(tensors: dict[str, torch.Tensor], part: str) -> None:
    del tensors[f"{NAME}.{part}"]


def change(part: str, how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{NAME}.{part}"] = how(tensors[f"{NAME}.{part}"]).contiguous()

    return edit


@pytest.mark.parametrize(
    ("layout", "edit", "parts"),
    [
        ("awq", lambda t: drop(t, "scales"), ("scales", "missing")),
        ("awq", lambda t: drop(t, "qzeros"), ("qzeros", "missing")),
        ("awq", lambda t: drop(t, "qweight"), ("qweight", "missing")),
        ("awq", change("scales", lambda s: s[:, :-8]), ("scales", "[2, 96]", "[2, 88]")),
        ("awq", change("qweight", lambda w: w.float()), ("qweight", "F32", "I32")),
        ("gptq", change("g_idx", lambda g: g.flip(0)), ("g_idx", "desc_act")),
        ("gptq", lambda t: drop(t, "qzeros"), ("qzeros", "missing")),
        ("w4a16", lambda t: drop(t, "weight_scale"), ("weight_scale", "missing")),
        ("w4a16", lambda t: drop(t, "weight_packed"), ("weight_packed", "missing")),
        ("w4a16", change("weight_shape", lambda s: s.flip(0)), ("weight_shape", "[96, 64]", "[64, 96]")),
        ("w4a16 asymmetric", lambda t: drop(t, "weight_zero_point"), ("weight_zero_point", "missing")),
        ("w8a8", lambda t: drop(t, "weight_scale"), ("weight_scale", "missing")),
        ("w8a8", change("weight_scale", lambda s: s[:, 0]), ("weight_scale", "[96, 1]", "[96]")),
        ("w8a8", change("weight", lambda w: w.float()), ("weight", "F32", "I8")),
    ],
)
def test_tensors_that_are_missing_or_do_not_fit(
    tmp_path: Path, layout: str, edit: Callable[[dict[str, torch.Tensor]], None], parts: tuple[str, ...]
) -> None:
    folder, _ = files.write(tmp_path, LAYOUTS[layout])
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
    refused(folder, "model.safetensors" if "missing" not in parts else str(folder), NAME, *parts)


def test_an_order_of_activations_in_compressed_tensors(tmp_path: Path) -> None:
    folder, _ = files.write(tmp_path, LAYOUTS["w4a16"])
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{NAME}.weight_g_idx"] = torch.zeros(files.WIDTH, dtype=torch.int32)
    save_file(tensors, folder / "model.safetensors")
    refused(folder, f"{NAME}.weight_g_idx", "actorder")


def test_a_quantised_checkpoint_is_not_converted_again(tmp_path: Path) -> None:
    folder, plain = files.write(tmp_path, LAYOUTS["awq"])
    with pytest.raises(ModelError, match=r"--quantize int8 is for plain weights.*awq"):
        CpuDevice(threads=1).load(folder, "float32", None, lambda _phase, _share: None, "int8")
    for to in ("int4", "int8", "w8a8"):
        runner = CpuDevice(threads=1).load(plain, "float32", None, lambda _phase, _share: None, to)
        assert runner.facts.quantization == to
