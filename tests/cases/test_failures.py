"""What is promised when a process dies: kill -9 of a worker, the governor, a client, the server."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from coldplate.v1 import device_pb2
from support import case_models
from support.case_models import alphabet_answer
from support.client import Alive, StreamCall, gauges, request, status, unary
from support.processes import Stack, governor, until
from support.vllm import WORKERS, slow_steps

PROMPT = "x" * 10


@pytest.fixture(scope="module", params=WORKERS)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """One worker with steps of at least 20 ms; the first worker's process may be killed."""
    options = slow_steps(request.param, ["kv-cache-tokens=2048", "max-num-seqs=8"])
    with Stack({"alphabet": case_models.alphabet()}, **options) as running:
        yield running


@pytest.fixture
def alive(stack: Stack) -> Iterator[Alive]:
    check = Alive(stack, "alphabet")
    yield check
    check.check()


def device(stack: Stack) -> device_pb2.DeviceStatus:
    return status(stack).devices[0]


def engine_pid(stack: Stack) -> int:
    """The one worker; asked of the processes themselves."""
    return until("one worker process", lambda: next(iter(stack.worker_pids()), None), 30)


@pytest.mark.usefixtures("alive")
def test_a_killed_worker_ends_its_streams_with_a_typed_status_and_is_started_again(stack: Stack) -> None:
    begun = StreamCall(stack, request(PROMPT, max_tokens=200)).read_deltas(3).start_reading()
    unary_call = StreamCall(stack, request(PROMPT, max_tokens=200)).read_deltas(1).start_reading()
    psutil.Process(engine_pid(stack)).kill()
    killed_at = time.monotonic()
    for outcome in (begun.result(5), unary_call.result(5)):
        assert outcome.code.name == "ABORTED"
        assert outcome.reason == "STREAM_CUT"
        assert outcome.completed is None
        assert outcome.end_time - killed_at < 2
        assert outcome.text == alphabet_answer(len(PROMPT), outcome.token_count)
        assert f"after {outcome.token_count} tokens" in outcome.message
    refused = unary(stack, request(PROMPT, max_tokens=2))
    assert refused.code.name == "UNAVAILABLE"
    assert refused.retry_after_s
    until("the worker again", lambda: stack.health() == "SERVING", stack.start_timeout_s)
    assert device(stack).restarts == 1


@pytest.mark.usefixtures("alive")
def test_a_killed_governor_leaves_safe_limits_and_the_streams_and_a_new_one_takes_over(stack: Stack) -> None:
    first = governor(stack, "--device=cpu", "--sensor=cpu@psutil")
    try:
        until("governed", lambda: status(stack).governor.state == device_pb2.GOVERNOR_STATE_GOVERNED, 30)
        epoch = status(stack).governor.epoch
        running = StreamCall(stack, request(PROMPT, max_tokens=240)).read_deltas(1).start_reading()
        first.kill()
        killed_at = time.monotonic()
        until("the lease to run out", lambda: status(stack).governor.state == device_pb2.GOVERNOR_STATE_LOST, 6)
        assert time.monotonic() - killed_at < 5.5
        limited = device(stack)
        assert {binding.source for binding in limited.bindings} == {device_pb2.LIMIT_SOURCE_SAFE}
        assert limited.limits.duty == pytest.approx(0.6)
        assert limited.state == device_pb2.DEVICE_STATE_THROTTLED
        assert "safe" in limited.detail
        assert running.result(60).text == alphabet_answer(len(PROMPT), 240)
    finally:
        first.kill()
    with governor(stack, "--device=cpu", "--sensor=cpu@psutil"):
        until("governed again", lambda: status(stack).governor.state == device_pb2.GOVERNOR_STATE_GOVERNED, 30)
        assert status(stack).governor.epoch > epoch


@pytest.mark.usefixtures("alive")
def test_a_killed_client_stops_the_work(stack: Stack) -> None:
    script = (
        "import sys\n"
        "from coldplate_client import Client\n"
        "with Client(sys.argv[1]) as client, client.stream('x' * 10, max_tokens=240, temperature=0) as stream:\n"
        "    for text in stream.texts():\n"
        "        print(text, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, stack.address], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline()
        assert gauges(stack).running
        client.kill()
        killed_at = time.monotonic()
        until("an idle engine", lambda: gauges(stack).running == 0 and gauges(stack).kv_tokens_used == 0, 2)
        assert time.monotonic() - killed_at < 2


def test_workers_end_soon_after_their_server_was_killed() -> None:
    with Stack(
        {"alphabet": case_models.alphabet()}, engine_args=["kv-cache-tokens=1024", "orphan-timeout-s=1"]
    ) as stack:
        worker = psutil.Process(engine_pid(stack))
        stack.signal(signal.SIGKILL)
        stack.wait(5)
        until("the worker to end", lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, 10)
        stack.kill()
        stack.stop = lambda timeout_s=0.0: 0  # type: ignore[method-assign]
