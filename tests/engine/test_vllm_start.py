"""How a vLLM worker is asked for, and what is said where it cannot be had."""

import os
from pathlib import Path
from typing import Any

import pytest

from coldplate.device_id import parse_group
from coldplate_engine.main import load, split_flags
from coldplate_engine.messages import EngineError
from coldplate_engine.runner import ModelError
from coldplate_engine.settings import EngineSettings
from coldplate_engine.vllm_worker.arguments import vllm_flags
from coldplate_engine.vllm_worker.child_log import ChildLog
from coldplate_engine.vllm_worker.environment import prepare
from coldplate_engine.vllm_worker.failures import is_device_fault, kind_of, root_cause
from support.processes import run, until


def settings(**given: Any) -> EngineSettings:
    return EngineSettings.model_validate({"engine": "vllm", "model": "m", "listen": "unix:s", **given})


def test_flags_that_are_not_ours_are_vllms_with_their_values() -> None:
    ours, others = split_flags(
        ["--engine=vllm", "--tensor-parallel-size", "2", "--model", "m", "-cc.mode=0", "--no-test-faults", "--x", "-1"]
    )
    assert ours == ["--engine=vllm", "--model", "m", "--no-test-faults"]
    assert others == ["--tensor-parallel-size", "2", "-cc.mode=0", "--x", "-1"]


def test_vllms_flags_come_behind_those_of_a_file(tmp_path: Path) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text('engine = "vllm"\nvllm_args = ["--swap-space=1"]\n')
    loaded = load(["--config", str(profile), "--model=m", "--listen=unix:s", "--seed=3"])
    assert loaded.vllm_args == ["--swap-space=1", "--seed=3"]


def test_a_native_worker_takes_no_flag_it_does_not_know(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(["--model=m", "--listen=unix:s", "--tensor-parallel-size=2"])
    assert "tensor-parallel-size" in capfd.readouterr().err


def test_only_what_was_given_is_passed_on_and_an_owners_flags_come_last() -> None:
    flags = vllm_flags(settings(max_num_seqs=8, vllm_args=["--max-num-seqs=4"]), "npu")
    assert "--max-num-seqs=8" in flags
    assert flags[-1] == "--max-num-seqs=4"
    assert not any(flag.startswith(("--max-model-len", "--block-size", "--kv-cache")) for flag in flags)


def test_the_cache_in_tokens_is_blocks_and_one_for_vllm() -> None:
    assert "--num-gpu-blocks-override=9" in vllm_flags(settings(kv_cache_tokens=1024), "cpu")
    assert "--num-gpu-blocks-override=65" in vllm_flags(settings(kv_cache_tokens=1024, block_size=16), "cpu")


def test_a_setting_of_the_native_engine_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="--quantize is not for --engine vllm"):
        vllm_flags(settings(quantize="int4"), "cpu")


def test_what_an_owner_has_set_in_the_environment_stays() -> None:
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "0-3"}
    prepare(parse_group("cpu"), 2, environment)
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"
    assert environment["OMP_NUM_THREADS"] == "2"
    environment = {}
    prepare(parse_group("npu:0-1"), 2, environment)
    assert environment["ASCEND_RT_VISIBLE_DEVICES"] == "0,1"
    assert "OMP_NUM_THREADS" not in environment


CORE = "(EngineCore pid=7) ERROR 11-30 20:35:17 [core.py:99] "


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["all is well"], None),
        (
            [
                CORE + "ValueError: No available memory for the cache blocks.",
                "RuntimeError: Engine core initialization failed. See root cause above.",
            ],
            "ValueError: No available memory for the cache blocks.",
        ),
        (
            ["(Worker pid=9) torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2 GiB"],
            "OutOfMemoryError: NPU out of memory. Tried to allocate 2 GiB",
        ),
    ],
)
def test_the_root_cause_is_found_behind_the_hearsay(lines: list[str], cause: str | None) -> None:
    assert root_cause(lines) == cause


def test_memory_and_device_are_told_apart() -> None:
    assert kind_of("OutOfMemoryError: NPU out of memory") is EngineError.OUT_OF_MEMORY
    assert kind_of("RuntimeError: NPU function error: x, error code is 507035") is EngineError.DEVICE
    assert is_device_fault("RuntimeError: set device failed, error code is 507033")
    assert not is_device_fault("RuntimeError: error code is 207001, out of memory")
    assert not is_device_fault("ValueError: Model architectures ['X'] are not supported for now")


def test_what_vllm_writes_is_progress_and_goes_on_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[str, float]] = []
    log = ChildLog(lambda phase, share: seen.append((phase, share)))
    with log.inherited():
        run_echo("Loading safetensors checkpoint shards:  50% Completed | 1/2")
        run_echo("(Worker pid=1) INFO Loading weights took 3.20 seconds")
    until("both lines", lambda: len(log.lines()) == 2, 5)
    assert seen == [("weights", 0.5), ("weights", 1.0)]
    assert "50% Completed" in capfd.readouterr().err
    log.forget()
    assert log.lines() == []


def run_echo(text: str) -> None:
    import subprocess

    subprocess.run(["echo", text], check=True)


@pytest.mark.slow
def test_without_vllm_the_worker_ends_with_one_line_that_says_how_to_have_it(tmp_path: Path) -> None:
    done = run("coldplate-engine", "--engine=vllm", f"--model={tmp_path}", f"--listen=unix:{tmp_path}/s")
    assert done.returncode == 2
    assert "vLLM is not installed" in done.stderr.splitlines()[-1]
    assert "--vllm-python" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_vllm_too_old_is_refused_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old"
    (old / "vllm").mkdir(parents=True)
    (old / "vllm" / "__init__.py").touch()
    (old / "vllm-0.9.1.dist-info").mkdir()
    (old / "vllm-0.9.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.9.1\n")
    monkeypatch.setenv("PYTHONPATH", str(old), prepend=os.pathsep)
    done = run("coldplate-engine", "--engine=vllm", f"--model={tmp_path}", f"--listen=unix:{tmp_path}/s")
    assert done.returncode == 2
    assert "0.9.1" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
