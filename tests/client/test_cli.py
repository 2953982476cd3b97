"""The command line as a user runs it, against a server with canned answers."""

import contextlib
import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.console import Console

from client.fake_server import REASON, FakeServer, canned_status
from coldplate.v1 import device_pb2
from coldplate_client.cli.status_table import status_view

_COLDPLATE = [sys.executable, "-c", "from coldplate_client.cli import main; main()"]


def run(*args: str | bytes, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLDPLATE_")}
    result = subprocess.run(
        [*_COLDPLATE, *args], input=stdin, capture_output=True, env={**kept, "COLUMNS": "200", **env}, timeout=30
    )
    return subprocess.CompletedProcess(args, result.returncode, result.stdout.decode(), result.stderr.decode())


@pytest.fixture
def control(tmp_path: Path) -> Iterator[str]:
    with FakeServer(f"unix:{tmp_path / 'control.sock'}"):
        yield str(tmp_path / "control.sock")


def test_the_version_is_that_of_the_distribution() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout.strip()) == (0, f"coldplate {version('coldplate')}")


def test_generate_prints_the_answer(server: FakeServer) -> None:
    for flags in ([], ["--no-stream"]):
        result = run("generate", "say 中文 hello", "--server", server.target, *flags)
        assert (result.returncode, result.stdout, result.stderr) == (0, "中文 hello\n", "")


def test_generate_takes_the_prompt_from_standard_input_and_the_server_from_the_environment(server: FakeServer) -> None:
    result = run("generate", stdin=b"say piped", COLDPLATE_SERVER=server.target)
    assert (result.returncode, result.stdout) == (0, "piped\n")


def test_generate_passes_its_options_on(server: FakeServer) -> None:
    flags = ["--max-tokens=5", "--temperature=0", "--seed=9", "--stop=a", "--stop=b", "--model=demo", "--timeout-s=20"]
    result = run("generate", "say x", "--json", *flags, "--server", server.target)
    answer = json.loads(result.stdout)
    assert (answer["text"], answer["finish_reason"], answer["seed"]) == ("x", "end_of_text", 7)
    (request,) = server.seen.requests
    assert (request.model, request.stopping.max_tokens, list(request.stopping.stop_sequences)) == (
        "demo",
        5,
        ["a", "b"],
    )
    assert (request.sampling.HasField("temperature"), request.sampling.seed) == (True, 9)
    assert server.seen.time_remaining_s[0] is not None


def test_generate_passes_constraints_and_penalties_on(server: FakeServer, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": [1]}')
    flags = [f"--json-schema={schema}", "--repetition-penalty=1.5", "--min-tokens=2", "--frequency-penalty=0.5"]
    assert run("generate", "say x", *flags, "--server", server.target).returncode == 0
    assert run("generate", "say x", "--choice=a", "--choice=b", "--server", server.target).returncode == 0
    assert run("generate", "say x", "--regex=a+", "--server", server.target).returncode == 0
    first, second, third = server.seen.requests
    assert (first.json_schema, first.sampling.repetition_penalty) == ('{"enum": [1]}', 1.5)
    assert (first.stopping.min_tokens, first.sampling.frequency_penalty) == (2, 0.5)
    assert (list(second.choices.texts), third.regex) == (["a", "b"], "a+")


def test_generate_prints_every_choice_and_its_log_probabilities(server: FakeServer) -> None:
    result = run("generate", "say ab", "--n=2", "--logprobs=1", "--server", server.target)
    lines = ["ab", "  token 97: -0.5000, 9: -2.0000", "  token 98: -0.5000, 9: -2.0000"]
    assert result.stdout.splitlines() == ["[0]", *lines, "[1]", *lines]
    values = json.loads(run("generate", "say ab", "--n=2", "--json", "--server", server.target).stdout)
    assert [choice["text"] for choice in values["choices"]] == ["ab", "ab"]


@pytest.mark.parametrize("flags", [["--json-schema=/nowhere"], ["--regex=a", "--choice=b"]])
def test_a_constraint_that_cannot_be_sent_is_bad_usage(server: FakeServer, flags: list[str]) -> None:
    result = run("generate", "say x", *flags, "--server", server.target)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)


def test_what_a_model_thinks_is_no_part_of_what_is_printed(server: FakeServer) -> None:
    assert run("generate", "think ab", "--server", server.target).stdout == "ab\n"
    said = run("chat", "--once", "think ab", "--no-thinking", "--thinking-budget=3", "--server", server.target)
    assert said.stdout == "ab\n"
    reasoning = server.seen.requests[-1].reasoning
    assert (reasoning.HasField("enabled"), reasoning.enabled, reasoning.budget_tokens) == (True, False, 3)


def test_a_refusal_is_one_line_with_the_retry_hint(server: FakeServer) -> None:
    result = run("generate", "fail RESOURCE_EXHAUSTED", "--server", server.target)
    assert result.returncode == 1
    assert (result.stdout, result.stderr) == ("", "coldplate: told RESOURCE_EXHAUSTED (try again in 1.5 s)\n")


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--seed=-1", "seed is -1: expected 0 to 18446744073709551615"),
        ("--max-tokens=2147483648", "max_tokens is 2147483648: expected -2147483648 to 2147483647"),
        ("--timeout-s=-1", "timeout_s is -1.0: expected seconds, at least 0"),
    ],
)
def test_a_number_that_cannot_be_sent_is_named(server: FakeServer, flag: str, line: str) -> None:
    for command in (["generate", "say x"], ["generate", "say x", "--json"], ["chat", "--once", "say x"]):
        result = run(*command, flag, "--server", server.target)
        assert (result.returncode, result.stdout, result.stderr) == (2, "", f"coldplate: {line}\n")


def test_a_silent_service_is_named(server: FakeServer) -> None:
    result = run("generate", "hang", "--no-stream", "--timeout-s=0.2", "--server", server.target)
    assert (result.stdout, result.stderr) == ("", f"coldplate: {server.target} did not answer in time\n")


def test_a_deadline_in_the_middle_of_an_answer_is_told_from_silence(server: FakeServer) -> None:
    result = run("generate", "hang", "--timeout-s=1", "--server", server.target)
    assert (result.returncode, result.stdout) == (1, "x\n")
    assert result.stderr == "coldplate: the time ran out before the answer was whole\n"


@pytest.mark.parametrize("command", [["generate"], ["chat", "--once"]])
def test_an_interrupted_answer_does_not_look_whole(server: FakeServer, command: list[str]) -> None:
    process = subprocess.Popen([*_COLDPLATE, *command, "hang", "--server", server.target], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b"\n"
        assert process.wait(10) == 130
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_a_cut_answer_shows_what_came_and_fails(server: FakeServer) -> None:
    result = run("generate", "cut ABORTED", "--server", server.target)
    assert (result.returncode, result.stdout) == (1, "ab\n")
    assert "told ABORTED" in result.stderr


@pytest.mark.parametrize("args", [["generate", b"a\xffb"], ["chat", "--once", b"a\xffb"]])
def test_text_that_is_no_text_is_named(server: FakeServer, args: list[str | bytes]) -> None:
    result = run(*args, "--server", server.target)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "lone surrogate" in result.stderr


def test_standard_input_that_is_no_utf8_is_named(server: FakeServer) -> None:
    result = run("generate", "--server", server.target, stdin=b"ab\xff")
    assert (result.returncode, result.stderr) == (2, "coldplate: standard input is not UTF-8: byte 2 is 0xff\n")


def test_nothing_listening_says_what_to_do() -> None:
    result = run("status", "--server", "127.0.0.1:1")
    assert result.returncode == 1
    assert result.stderr == (
        "coldplate: nothing listens at 127.0.0.1:1: start the service with `coldplate up`, "
        "or name another with --server\n"
    )


def test_a_missing_control_socket_says_what_to_do(tmp_path: Path) -> None:
    result = run("limit", "--max-batch", "1", "--control", str(tmp_path / "no.sock"))
    assert result.returncode == 1
    assert f"there is no socket {tmp_path / 'no.sock'}" in result.stderr


def test_chat_once(server: FakeServer) -> None:
    result = run("chat", "--once", "say fine", "--system", "s", "--server", server.target)
    assert (result.returncode, result.stdout) == (0, "fine\n")
    assert [message.role for message in server.seen.requests[0].conversation.messages] == ["system", "user"]


def test_chat_keeps_the_conversation_and_survives_a_refusal(server: FakeServer) -> None:
    result = run("chat", "--server", server.target, stdin=b"say one\n\nfail UNAVAILABLE\nsay two\n/quit\n")
    assert result.returncode == 0
    assert "one" in result.stdout
    assert "told UNAVAILABLE" in result.stderr
    last = server.seen.requests[-1].conversation.messages
    assert [message.text for message in last] == ["say one", "one", "say two"]


def test_an_interrupt_stops_the_answer_and_not_the_chat(server: FakeServer) -> None:
    lead, follow = pty.openpty()
    process = subprocess.Popen(
        [*_COLDPLATE, "chat", "--server", server.target],
        stdin=follow,
        stdout=follow,
        stderr=follow,
        start_new_session=True,
    )
    os.close(follow)
    try:
        _read_until(lead, b"> ")
        os.write(lead, b"hang\n")
        _read_until(lead, b"\nx")
        os.kill(process.pid, signal.SIGINT)
        assert server.seen.ended.wait(5)
        _read_until(lead, b"[stopped]\n> ")
        os.write(lead, b"say still here\n")
        _read_until(lead, b"\nstill here")
        os.write(lead, b"/quit\n")
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        os.close(lead)


def _read_until(terminal: int, expected: bytes) -> None:
    """Read what the program writes until ``expected``; the test's own time limit ends a wait in vain."""
    seen = b""
    while expected not in seen.replace(b"\r", b""):
        seen += os.read(terminal, 4096)


def test_status_tells_who_limits(server: FakeServer) -> None:
    result = run("status", "--server", server.target)
    assert result.returncode == 0
    assert "queued 2, running 3; governed by governor, lease 4.0 s" in result.stdout
    assert "npu:0 (simulated): THROTTLED, 81.4 °C, running 3, 42.5 tokens/s" in result.stdout
    assert "limits: duty 60 % (governor), max_batch 8 (operator)" in result.stdout
    assert f"\n    governor: THROTTLED: {REASON}\n" in result.stdout
    assert "cpu: SERVING, running 0, 0.0 tokens/s, limits: none" in result.stdout


def test_status_of_a_lost_governor_gives_no_old_reasons(server: FakeServer) -> None:
    server.status.governor.state = device_pb2.GOVERNOR_STATE_LOST
    result = run("status", "--server", server.target)
    assert "running 3; no governor holds the lease: safe limits hold\n" in result.stdout
    assert "degC" not in result.stdout


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_status_fits_the_terminal(width: int) -> None:
    shown = io.StringIO()
    Console(width=width, soft_wrap=True, file=shown).print(status_view(canned_status(), width))
    text = shown.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    words = " ".join(text.split())
    for part in (
        "npu:0 (simulated)",
        "THROTTLED",
        "81.4 °C",
        "duty 60 % (governor)",
        REASON,
    ):
        assert part in words
    assert "…" not in text


def test_an_interval_without_watching_is_refused(server: FakeServer) -> None:
    result = run("status", "--interval-s=2", "--server", server.target)
    assert (result.returncode, result.stderr) == (2, "coldplate: --interval-s goes with --watch\n")


def test_status_as_json(server: FakeServer) -> None:
    status = json.loads(run("status", "--json", "--server", server.target).stdout)
    assert status["devices"][0]["limits"] == {"duty": 0.6, "max_batch": 8}


def test_status_watch_prints_every_change_until_interrupted(server: FakeServer) -> None:
    process = subprocess.Popen(
        [*_COLDPLATE, "status", "--watch", "--json", "--server", server.target], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        assert (first["queued"], second["queued"]) == (2, 3)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert server.seen.ended.wait(5)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_limits_are_set_and_released_by_hand(control: str) -> None:
    result = run("limit", "--max-batch", "4", "--duty", "0.5", "--control", control)
    assert (result.returncode, result.stdout) == (0, "npu:0: duty 50 % (operator), max_batch 4 (operator)\n")
    result = run("limit", "--release", COLDPLATE_CONTROL_SOCKET=control)
    assert (result.returncode, result.stdout) == (0, "npu:0: none\n")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "at least one limit"),
        (["--release", "--max-batch", "1"], "--release alone"),
        (["--duty", "1.5"], "duty is 1.5"),
        (["--duty", "nan"], "duty is nan"),
        (["--max-batch", "0"], "max_batch is 0"),
    ],
)
def test_unusable_limits_are_refused_here(control: str, args: list[str], words: str) -> None:
    result = run("limit", *args, "--control", control)
    assert result.returncode == 2
    assert words in result.stderr


def test_an_unknown_device_is_the_services_refusal(control: str) -> None:
    result = run("limit", "--max-batch", "1", "--device", "npu:9", "--control", control)
    assert (result.returncode, result.stderr) == (1, "coldplate: there is no device 'npu:9'\n")


def test_drain_resume_abort(control: str) -> None:
    assert run("drain", "--control", control).stdout == "draining, 3 still running\n"
    assert run("resume", "--control", control).returncode == 0
    result = run("abort", "r1", "x2", "--control", control)
    assert (result.returncode, result.stdout, result.stderr) == (1, "ended 1: r1\n", "coldplate: not running: x2\n")
    assert run("abort", "--control", control).returncode == 2


def test_models_list(server: FakeServer) -> None:
    result = run("models", "list", "--server", server.target)
    assert result.returncode == 0
    for word in ("demo", "AVAILABLE", "LlamaForCausalLM", "135 M", "2048", "cpu (float32)", "500 + 64 MiB"):
        assert word in result.stdout
    assert "cpu: logprobs, guided; block_size 16" in result.stdout
    assert len(run("models", "list", "--server", server.target, COLUMNS="30").stdout.splitlines()) == 3, "not cut"


@pytest.mark.parametrize("content", [b"<html>", b"GGUF", b""])
def test_import_of_a_foreign_file_names_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    result = run("models", "import", str(file), "--out", str(tmp_path / "out"))
    assert result.returncode == 2
    assert result.stderr.startswith(f"coldplate: {file}: ")
    assert result.stderr.count("\n") == 1


def test_import_without_the_extra_names_it(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules.update(coldplate_engine=None); sys.argv[1:] = ['models', 'demo'];"
        "from coldplate_client.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 2
    assert "coldplate[engine]" in result.stderr


def test_bad_usage_is_exit_code_2() -> None:
    assert run("generate", "--max-tokens", "many").returncode == 2
    assert run("nonsense").returncode == 2


def test_a_listener_that_is_no_grpc_service_is_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_answer_http, args=(listener,), daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        result = run("status", "--server", address)
    assert (result.returncode, result.stderr) == (
        1,
        f"coldplate: what listens at {address} is no gRPC service without TLS\n",
    )


def _answer_http(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def test_an_address_with_a_scheme_is_told_apart() -> None:
    result = run("status", "--server", "http://127.0.0.1:50051")
    assert result.returncode == 1
    assert "expected HOST:PORT" in result.stderr


def test_an_unknown_host_is_named() -> None:
    result = run("status", "--server", "nosuch.invalid:1")
    assert (result.returncode, result.stderr) == (1, "coldplate: the host in nosuch.invalid:1 is not known\n")
