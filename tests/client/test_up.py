"""A whole stack on this machine: it comes up, survives what it should, and leaves nothing behind."""

import os
import queue
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from coldplate_client import AdminClient, Client
from coldplate_client.up import Stack, StackFailed, StackPlan
from support import checkpoints
from support.processes import BIN, clean_environment, free_port, until
from support.tokenizers import CHATML, TokenizerSpec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> Path:
    return checkpoints.random_llama(seed=1, tokenizer=TokenizerSpec(chat_template=CHATML)).path


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="coldplate-up-") as folder:
        yield Path(folder)


def plan(model: Path, run_dir: Path, **changes: object) -> StackPlan:
    values: dict[str, object] = {
        "model_folder": model,
        "model_name": "demo",
        "run_dir": run_dir,
        "control_socket": run_dir / "control.sock",
        "listen": f"127.0.0.1:{free_port()}",
        "metrics_listen": f"127.0.0.1:{free_port()}",
    }
    return StackPlan(**{**values, **changes})  # type: ignore[arg-type]


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def assert_nothing_left(stack: Stack, before: list[psutil.Process]) -> None:
    left = [process for process in descendants() if process not in before and process.status() != "zombie"]
    assert [process.cmdline() for process in left] == []
    assert [path for path in stack.plan.run_dir.rglob("*") if path.is_socket()] == []
    assert not stack.plan.control_socket.exists()


def test_board_governor_and_two_workers_serve_and_end(model: Path, run_dir: Path) -> None:
    before = descendants()
    reports: queue.Queue[str] = queue.Queue()
    with Stack(plan(model, run_dir, board="310p"), report=reports.put) as stack, Client(stack.plan.listen) as client:
        assert {device.device for device in client.status().devices} == {"cpu", "npu:0"}
        assert client.generate("hello", max_tokens=4).usage.completion_tokens <= 4
        until("governed", lambda: client.status().governor.name == "governor", 20)
        (governor,) = [child for child in stack._children if child.name == "governor"]
        killed = governor.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        until("reported", lambda: any("the governor was ended by SIGKILL" in line for line in drain(reports)))
        until("started again", lambda: governor.alive and governor.pid != killed)
        until("governed again", lambda: client.status().governor.epoch > 0, 20)
        assert stack.stop() == []
    assert_nothing_left(stack, before)


def drain(lines: "queue.Queue[str]") -> list[str]:
    return [lines.get_nowait() for _ in range(lines.qsize())]


def test_a_killed_server_ends_the_stack_and_leaves_nothing(model: Path, run_dir: Path) -> None:
    before = descendants()
    with Stack(plan(model, run_dir)) as stack:
        with AdminClient(f"unix:{stack.plan.control_socket}") as admin:
            os.kill(admin.server_info().pid, signal.SIGKILL)
        with pytest.raises(StackFailed, match="the server was ended by SIGKILL"):
            stack.wait()
    assert_nothing_left(stack, before)


def test_an_unusable_model_is_named(run_dir: Path) -> None:
    folder = run_dir / "empty"
    folder.mkdir()
    before = descendants()
    stack = Stack(plan(folder, run_dir / "run"))
    with pytest.raises(StackFailed) as failed:
        stack.start()
    stack.stop()
    assert failed.value.unusable
    assert "config.json" in str(failed.value) or "empty" in str(failed.value)
    assert_nothing_left(stack, before)


def test_unusable_folders_and_files_are_named_in_one_line(model: Path, run_dir: Path) -> None:
    file = run_dir / "model.gguf"
    file.touch()
    for flags, folder, words in (
        ([f"--model={model}"], file, f"cannot use the folder {file}/coldplate/up-"),
        ([f"--model={file}"], run_dir, f"{file}: is not a GGUF file"),
    ):
        result = subprocess.run(
            [BIN / "coldplate", "up", *flags],
            capture_output=True,
            text=True,
            env=clean_environment(XDG_RUNTIME_DIR=str(folder)),
            timeout=60,
        )
        assert result.returncode == 2
        assert words in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_taken_port_is_named_without_other_noise(model: Path, run_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        stack = Stack(plan(model, run_dir, listen=f"127.0.0.1:{taken.getsockname()[1]}"))
        with pytest.raises(StackFailed, match=r"cannot listen on .* choose another with --listen") as failed, stack:
            pass
    assert failed.value.unusable
    assert len(str(failed.value).splitlines()) == 3, "what ended, why, and where the log is"


def test_up_runs_until_it_is_told_to_end(model: Path, run_dir: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    metrics = f"127.0.0.1:{free_port()}"
    before = descendants()
    process = subprocess.Popen(
        [BIN / "coldplate", "up", f"--model=demo={model}", f"--listen={address}", f"--metrics-listen={metrics}"],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(XDG_RUNTIME_DIR=str(run_dir)),
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith(f"serving at {address}") for line in lines)
        with Client(address) as client:
            assert client.generate("hello", max_tokens=2).usage.completion_tokens <= 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout.read().endswith("stopped\n")
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
    assert [left.cmdline() for left in descendants() if left not in before] == []
    assert [path for path in run_dir.rglob("*") if path.is_socket()] == []


def test_killing_up_itself_ends_what_it_started(model: Path, run_dir: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    flags = [f"--model=demo={model}", f"--listen={address}", f"--metrics-listen=127.0.0.1:{free_port()}"]
    with subprocess.Popen(
        [BIN / "coldplate", "up", *flags],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(XDG_RUNTIME_DIR=str(run_dir)),
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert any(line.startswith(f"serving at {address}") for line in iter(process.stdout.readline, ""))
            started = psutil.Process(process.pid).children(recursive=True)
            assert len(started) >= 3
        finally:
            process.kill()
    _, left = psutil.wait_procs(started, timeout=20)
    try:
        assert [process.cmdline() for process in left] == []
    finally:
        for orphan in left:
            orphan.kill()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model=/nowhere"], "there is no folder '/nowhere'"),
        (["--worker=nonsense"], "nonsense"),
        (["--board=999z"], "999z"),
    ],
)
def test_unusable_arguments_are_exit_code_2(model: Path, run_dir: Path, flags: list[str], words: str) -> None:
    given = [f"--model={model}", f"--listen=127.0.0.1:{free_port()}", "--metrics-listen=127.0.0.1:0", *flags]
    result = subprocess.run(
        [BIN / "coldplate", "up", *given],
        capture_output=True,
        text=True,
        env=clean_environment(XDG_RUNTIME_DIR=str(run_dir)),
        timeout=60,
    )
    assert result.returncode == 2
    assert words in result.stderr
