"""The server as a process among others: what lies where it listens, who reads its log, when it is told to end."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from coldplate.v1 import admin_pb2, admin_pb2_grpc, generation_pb2_grpc
from support import case_models
from support.case_models import alphabet_answer
from support.client import Alive, StreamCall, request, status
from support.processes import BIN, SLOW_DEVICE, Stack, clean_environment, free_port, new_folder, until

PROMPT = "x" * 10


@contextlib.contextmanager
def server(*args: str, stderr: int, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server whose standard error is ``stderr``, and its address; ended by SIGTERM with exit code 0."""
    folder, address = new_folder(), f"127.0.0.1:{free_port()}"
    command = [
        *(str(BIN / "coldplate-server"), f"--model=alphabet={case_models.alphabet().path}", f"--listen={address}"),
        *("--metrics-listen=", f"--control-socket={folder}/control.sock", "--engine-arg=--threads=1", *args),
    ]
    with subprocess.Popen(command, stderr=stderr, env=clean_environment(**env)) as process:
        try:
            yield process, address
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_a_file_in_the_place_of_the_control_socket_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("precious")
    done = subprocess.run(
        [
            *(BIN / "coldplate-server", f"--model={case_models.alphabet().path}", f"--control-socket={file}"),
            *(f"--listen=127.0.0.1:{free_port()}", "--metrics-listen="),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        env=clean_environment(),
        check=False,
    )
    assert done.returncode == 2
    assert "no socket" in done.stderr.splitlines()[-1]
    assert file.read_text() == "precious"


def test_a_signal_while_starting_ends_it_cleanly(tmp_path: Path) -> None:
    with server(stderr=subprocess.DEVNULL, TMPDIR=str(tmp_path)) as (process, _):
        until("its folder for sockets", lambda: list(tmp_path.glob("coldplate-workers-*")), 20, 0.001)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("reader", ["nobody reads", "gone", "no room"])
def test_a_log_that_goes_nowhere_stops_nobody(reader: str) -> None:
    read_end, write_end = os.pipe()
    if reader == "gone":
        os.close(read_end)
        read_end = os.open(os.devnull, os.O_RDONLY)
    elif reader == "no room":
        os.close(write_end)
        write_end = os.open("/dev/full", os.O_WRONLY)
    chatty = ("--log-level=debug", "--engine-arg=--log-level=debug")
    try:
        with server(*chatty, stderr=write_end) as (_, address), grpc.insecure_channel(address) as channel:
            generate = generation_pb2_grpc.GenerationServiceStub(channel).Generate

            def answers() -> bool:
                with contextlib.suppress(grpc.RpcError):
                    return bool(generate(request(PROMPT, max_tokens=2), timeout=2))
                return False

            until("it serves", answers, 60, 0.1)
            for index in range(250):  # about 100 kB of log, more than a pipe holds
                generate(request(PROMPT, max_tokens=1, request_id=f"{index:0200}"), timeout=2)
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.mark.slow
def test_a_worker_that_dies_while_no_descriptor_is_left_comes_back() -> None:
    with Stack(
        {"alphabet": case_models.alphabet()},
        workers=[SLOW_DEVICE],
        engine_args=["kv-cache-tokens=1024", "test-faults"],
    ) as stack:
        alive = Alive(stack, "alphabet")
        server_process = psutil.Process(stack.pid)
        limit = server_process.num_fds() + 8
        resource.prlimit(stack.pid, resource.RLIMIT_NOFILE, (limit, limit))
        host, _, port = stack.address.rpartition(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(30)]
        psutil.Process(stack.worker_pids()[0]).kill()
        until("it cannot be started", lambda: "Too many open files" in status(stack).devices[0].detail, 10)
        for connection in idle:
            connection.close()
        until("the worker again", lambda: stack.health() == "SERVING", 60)
        alive.check()


@pytest.mark.slow
def test_connections_that_say_nothing_or_nonsense_cost_little() -> None:
    with Stack(
        {"alphabet": case_models.alphabet()}, workers=[SLOW_DEVICE], engine_args=["kv-cache-tokens=1024", "test-faults"]
    ) as stack:
        alive = Alive(stack, "alphabet")
        before, descriptors = stack.rss_bytes(), psutil.Process(stack.pid).num_fds()
        host, _, port = stack.address.rpartition(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(500)]
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 4, preface + b"\xff" * 500):
            for family, address in ((socket.AF_INET, (host, int(port))), (socket.AF_UNIX, str(stack.control_socket))):
                with socket.socket(family) as foreign:
                    foreign.connect(address)
                    foreign.sendall(data)
        alive.check()
        assert stack.rss_bytes() - before < 40e6
        for connection in idle:
            connection.close()
        until("as many descriptors", lambda: psutil.Process(stack.pid).num_fds() <= descriptors + 5, 5)


@pytest.mark.slow
def test_a_hung_device_leaves_deadlines_aborts_and_the_end_of_the_server_working() -> None:
    with Stack(
        {"alphabet": case_models.alphabet()},
        workers=["fault:hang@20,cpu"],
        engine_args=["kv-cache-tokens=1024", "test-faults"],
        server_args=["drain-grace-s=1"],
    ) as stack:
        wanted = {"max_tokens": 60}
        timed = StreamCall(stack, request(PROMPT, **wanted), timeout_s=2).start_reading()
        named = StreamCall(stack, request(PROMPT, request_id="named", **wanted), timeout_s=None).start_reading()
        left = StreamCall(stack, request(PROMPT, **wanted), timeout_s=None).start_reading()
        assert timed.result(5).code.name == "DEADLINE_EXCEEDED"
        admin_pb2_grpc.AdminServiceStub(stack.control).Abort(admin_pb2.AbortRequest(request_ids=["named"]), timeout=2)
        assert named.result(2).code.name == "ABORTED"
        for outcome in (timed.outcome, named.outcome):
            assert outcome.text == alphabet_answer(len(PROMPT), outcome.token_count)
        began = time.monotonic()
        stack.signal(signal.SIGTERM)
        assert stack.wait(15) == 0
        assert time.monotonic() - began < 9  # a grace of 1 s, and 5 s for a worker that does not end when asked
        assert left.result(1).code.name == "ABORTED"
