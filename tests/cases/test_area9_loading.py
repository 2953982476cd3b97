"""Area 9: loading models."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support import case_models, checkpoints, quantized_files, tokenizers
from support.case_models import page
from support.checkpoints import Checkpoint
from support.client import Alive, StreamCall, both, chat, request, unary
from support.processes import Stack, free_port, run, until
from support.tokenizers import IM_START_ID, TokenizerSpec


def copy(model: Checkpoint, folder: Path) -> Path:
    return Path(shutil.copytree(model.path, folder / "model"))


def refused_at_start(model: Path, timeout_s: float = 30) -> str:
    """What a server that cannot use the model says last; it ends with 2 and never serves."""
    stack = Stack({"broken": model})
    seen = set()

    def ended() -> bool:
        seen.add(stack.health("model/broken"))
        return stack.exit_code is not None

    try:
        until("the server gives up", ended, timeout_s, 0.1)
    finally:
        stack.kill()
    assert "SERVING" not in seen
    assert stack.exit_code == 2, stack.log_tail()
    return stack.log().strip().splitlines()[-1]


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_l1_a_damaged_shard_is_named(tmp_path: Path, damage: str) -> None:
    folder = copy(checkpoints.random_llama(seed=5, shards=7), tmp_path)
    shard = folder / "model-00004-of-00007.safetensors"
    if damage == "missing":
        shard.unlink()
    else:
        os.truncate(shard, shard.stat().st_size - 100)
    assert shard.name in refused_at_start(folder)


def test_l1_whole_shards_load() -> None:
    whole, sharded = checkpoints.random_llama(seed=5), checkpoints.random_llama(seed=5, shards=7)
    with Stack({"whole": whole, "sharded": sharded}, engine_args=["kv-cache-tokens=512"]) as stack:
        one, other = (unary(stack, request("hello", model=name, max_tokens=16)).text for name in ("whole", "sharded"))
    assert one == other


def test_l3_tied_models_load_with_and_without_a_head() -> None:
    models = {
        "with": checkpoints.random_llama(seed=6, tie=True),
        "without": checkpoints.random_llama(seed=6, tie=True, with_head=False),
    }
    with Stack(models, engine_args=["kv-cache-tokens=512"]) as stack:
        one, other = (unary(stack, request("hello", model=name, max_tokens=16)).text for name in models)
    assert one == other


def test_l3_an_untied_model_without_a_head_is_refused_by_name() -> None:
    assert "lm_head.weight" in refused_at_start(checkpoints.random_llama(seed=6, with_head=False).path)


@pytest.mark.parametrize("stdin", ["open", "closed"])
def test_l4_code_in_a_checkpoint_is_never_run_or_asked_about(tmp_path: Path, stdin: str) -> None:
    folder = copy(checkpoints.random_llama(seed=5), tmp_path)
    marker = tmp_path / "marker"
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "surprise"
    config["architectures"] = ["SurpriseForCausalLM"]
    config["auto_map"] = {"AutoConfig": "code.SurpriseConfig", "AutoModelForCausalLM": "code.SurpriseForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    reading, writing = os.pipe()
    if stdin == "closed":
        os.close(writing)
    start = time.monotonic()
    done = run(
        "coldplate-server",
        f"--listen=127.0.0.1:{free_port()}",
        f"--metrics-listen=127.0.0.1:{free_port()}",
        f"--control-socket={tmp_path}/c.sock",
        f"--model=odd={folder}",
        stdin=reading,
        timeout_s=30,
    )
    os.close(reading)
    if stdin == "open":
        os.close(writing)
    assert done.returncode == 2, done.stderr
    assert time.monotonic() - start < 10
    assert "remote" in done.stderr.splitlines()[-1] or "SurpriseForCausalLM" in done.stderr.splitlines()[-1]
    assert not marker.exists()


@pytest.mark.parametrize("damage", ["html", "short", "cut", "unknown architecture"])
def test_l5_a_bad_gguf_is_named_with_the_reason(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "model.gguf"
    if damage == "html":
        file.write_text("<html><body>404</body></html>" * 10)
    elif damage == "short":
        file.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    elif damage == "cut":
        _tiny_gguf(file, "llama")
        os.truncate(file, file.stat().st_size // 2)
    else:
        _tiny_gguf(file, "mysterious")
    done = run("coldplate", "models", "import", str(file), timeout_s=60)
    assert done.returncode == 2, done.stderr
    assert "model.gguf" in done.stderr
    assert "Traceback" not in done.stderr
    if damage == "unknown architecture":
        assert "mysterious" in done.stderr


def test_l6_awq_is_served_and_an_unknown_method_refused_by_name(tmp_path: Path) -> None:
    model, plain = quantized_files.write(tmp_path, quantized_files.awq())
    for folder in (model, plain):
        tokenizers.save(TokenizerSpec(), folder)
    with Stack({"awq": model, "plain": plain}) as stack:
        answers = [
            unary(stack, request([65, 66, 67], model=name, max_tokens=4, ignore_end_of_text=True, token_ids=True))
            for name in ("awq", "plain")
        ]
        assert all(answer.ok and len(answer.token_ids) == 4 for answer in answers)
        assert answers[0].token_ids[0] == answers[1].token_ids[0]
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "nope"
    (model / "config.json").write_text(json.dumps(config))
    done = run("coldplate-engine", f"--model={model}", f"--listen=unix:{tmp_path}/e.sock", timeout_s=60)
    assert done.returncode == 2
    assert "'nope'" in done.stderr.splitlines()[-1]
    assert "config.json" in done.stderr.splitlines()[-1]


def _tiny_gguf(file: Path, architecture: str) -> None:
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_l7_end_tokens_of_the_generation_config_end_the_answer(service: Stack, alive: Alive) -> None:
    outcome = both(service, request(page("second end").prompt, model="book", max_tokens=16))
    assert outcome.text == "hi"
    assert outcome.finish == "END_OF_TEXT"


def test_l9_the_start_token_is_not_doubled(service: Stack, alive: Alive) -> None:
    template = [IM_START_ID, IM_START_ID, *b"user\nx", tokenizers.IM_END_ID, *b"\n", IM_START_ID, *b"assistant\n"]
    asked = unary(service, request(chat(("user", "x")), model="starting", max_tokens=12))
    assert asked.usage.prompt_tokens == len(template)
    by_hand = unary(service, request(template, model="starting", max_tokens=12))
    assert by_hand.usage.prompt_tokens == len(template)
    assert asked.text == by_hand.text


@contextlib.contextmanager
def _served(model: Checkpoint) -> Iterator[Stack]:
    with Stack({"model": model}, engine_args=["kv-cache-tokens=512"]) as stack:
        yield stack


def test_l10_a_token_beyond_the_embedding_table() -> None:
    """The tokenizer knows one token more than the model: refused at load, or for a prompt that holds it."""
    spec = TokenizerSpec(extra=("<|beyond|>",))
    model = checkpoints.script_book({"alive": b"fine"}, prompt_tokens={"alive": 5}, tokenizer=spec)
    with _served(model) as stack:
        alive = Alive(stack, "model")
        neighbour = StreamCall(stack, request("hello", max_tokens=4))
        beyond = unary(stack, request([120, tokenizers.BYTES_VOCABULARY, 120], max_tokens=4))
        assert beyond.code.name == "INVALID_ARGUMENT"
        assert neighbour.read_all().text == "fine"
        alive.check()


def test_l12_short_prompts_do_not_change_beside_long_ones(service: Stack, alive: Alive) -> None:
    short, long = page("after two"), page("after two hundred")
    wanted = request(short.prompt, model="book", max_tokens=len(short.token_ids))
    alone = unary(service, wanted).text
    assert alone == "first answer"
    calls = [
        StreamCall(service, request(long.prompt, model="book", max_tokens=len(long.token_ids))).start_reading(),
        StreamCall(service, wanted).start_reading(),
    ]
    assert [call.result().text for call in calls] == ["second answer of some length", alone]
    joined = StreamCall(service, request(long.prompt, model="book", max_tokens=len(long.token_ids))).read_deltas(2)
    assert unary(service, wanted).text == alone
    assert joined.read_all().text == "second answer of some length"


def test_an_unknown_model_folder_is_refused_by_name(tmp_path: Path) -> None:
    done = run("coldplate-server", f"--model=gone={tmp_path}/nowhere", f"--control-socket={tmp_path}/c.sock")
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("damage", ["missing", "shape"])
def test_a_wrong_tensor_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    folder = copy(case_models.chatty(), tmp_path)
    name = "model.layers.1.self_attn.k_proj.weight"
    file = folder / "model.safetensors"
    tensors = load_file(file)
    if damage == "missing":
        del tensors[name]
    else:
        tensors[name] = np.zeros((3, 3), np.float32)
    save_file(tensors, file)
    assert name in refused_at_start(folder)
