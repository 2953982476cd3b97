"""Limits on a running service: what they hold back, what they leave alone, and that their release is felt at once."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from coldplate.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc, device_pb2, generation_pb2
from support import case_models
from support.case_models import alphabet_answer
from support.client import Alive, StreamCall, limit, request, status, unary
from support.processes import Stack, until
from support.vllm import WORKERS, slow_steps

PROMPT = "x" * 10


@pytest.fixture(scope="module", params=WORKERS)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Eight slots and steps of at least 20 ms."""
    options = slow_steps(request.param, ["kv-cache-tokens=4096", "max-num-seqs=8"])
    with Stack({"alphabet": case_models.alphabet()}, **options) as running:
        yield running


@pytest.fixture
def alive(stack: Stack) -> Iterator[Alive]:
    check = Alive(stack, "alphabet")
    yield check
    limit(stack)
    check.check()


def start(stack: Stack, count: int, tokens: int) -> list[StreamCall]:
    wanted = request(PROMPT, max_tokens=tokens)
    return [StreamCall(stack, wanted, timeout_s=None).start_reading() for _ in range(count)]


def until_all_run(calls: list[StreamCall]) -> None:
    until("all running", lambda: all(call.outcome.deltas for call in calls), 10)


def whole(calls: list[StreamCall], tokens: int) -> bool:
    return all(call.result().text == alphabet_answer(len(PROMPT), tokens) for call in calls)


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize(
    "limits", [{"max_batch": 1}, {"admit": False}, {"max_context_tokens": 15}, {"cpu_share": 0.01}]
)
def test_what_runs_and_what_waits_is_kept(stack: Stack, limits: dict[str, Any]) -> None:
    running = start(stack, 8, 100)
    until_all_run(running)
    waiting = start(stack, 2, 10)
    until("two wait", lambda: status(stack).queued == 2)
    limit(stack, **limits)
    assert whole(running, 100)
    limit(stack)
    assert whole(waiting, 10)


@pytest.mark.usefixtures("alive")
def test_a_shed_class_leaves_the_queue_at_once_with_a_hint_and_what_runs_ends_well(stack: Stack) -> None:
    running = start(stack, 8, 60)
    until_all_run(running)
    (waiting,) = start(stack, 1, 10)
    until("one waits", lambda: status(stack).queued == 1)
    limit(stack, min_priority=3)
    shed = waiting.result()
    assert shed.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(shed.trailers["grpc-retry-pushback-ms"]) > 0
    assert not running[0].outcome.finishes, "it did not wait for room"
    late = unary(stack, request(PROMPT, max_tokens=2, priority=generation_pb2.PRIORITY_HIGH), timeout_s=30)
    assert late.ok, late.message
    assert whole(running, 60)


@pytest.mark.usefixtures("alive")
def test_a_context_cap_refuses_at_the_door_and_names_itself(stack: Stack) -> None:
    limit(stack, max_context_tokens=len(PROMPT))
    refused = unary(stack, request(PROMPT, max_tokens=2), timeout_s=5)
    assert refused.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "max_context_tokens" in refused.message
    limit(stack, max_context_tokens=len(PROMPT) + 2)
    short = unary(stack, request(PROMPT, max_tokens=50), timeout_s=30)
    assert (short.usage.completion_tokens, short.finish) == (2, "CONTEXT_FULL")


def test_levers_are_what_is_honoured_here(stack: Stack, request: pytest.FixtureRequest) -> None:
    (device,) = status(stack).devices
    own = {"duty", "max_batch", "max_prefill_tokens"}
    by_server = {"max_new_tokens", "max_context_tokens", "min_priority", "admit"}
    native: set[str] = set() if "vllm" in request.node.name else {"max_reasoning_tokens"}
    assert set(device.levers) == own | by_server | native, "one thread has no share to give"
    assert "max_encoder_tokens" not in device.levers


@pytest.mark.usefixtures("alive")
def test_a_paused_prefill_starts_again_at_once(stack: Stack) -> None:
    running = start(stack, 2, 60)
    until_all_run(running)
    limit(stack, max_prefill_tokens=0)
    late = start(stack, 2, 20)
    assert whole(running, 60)
    assert not any(call.outcome.deltas for call in late)
    assert unary(stack, request(PROMPT, max_tokens=2), timeout_s=0.5).code.name == "DEADLINE_EXCEEDED"
    limit(stack)
    until("their first tokens", lambda: all(call.outcome.deltas for call in late), 0.5)
    assert whole(late, 20)


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("duty", [0.01, 1e-300, 5e-324])
def test_the_release_of_a_tiny_duty_is_felt_at_once(stack: Stack, duty: float) -> None:
    (call,) = start(stack, 1, 60)
    until_all_run([call])
    limit(stack, duty=duty)
    assert unary(stack, request(PROMPT, max_tokens=2), timeout_s=0.5).code.name == "DEADLINE_EXCEEDED"
    before = call.outcome.token_count
    limit(stack)
    until("more tokens", lambda: call.outcome.token_count > before + 2, 0.5)
    assert whole([call], 60)
    assert status(stack).devices[0].restarts == 0


@pytest.mark.usefixtures("alive")
def test_a_lease_that_runs_out_ends_the_pause_it_brought(stack: Stack) -> None:
    running = start(stack, 1, 20)
    until_all_run(running)
    paused = device_pb2.DeviceLimits(max_prefill_tokens=0, duty=0.01)
    lease = control_pb2.ApplyLimitsRequest(
        governor="g", epoch=1, seq=1, devices=[control_pb2.DeviceDirective(device="cpu", limits=paused)]
    )
    lease.ttl.FromSeconds(1)
    control_pb2_grpc.ControlServiceStub(stack.control).ApplyLimits(lease, timeout=5)
    late = start(stack, 1, 10)
    assert whole(running, 20)
    assert whole(late, 10)
    assert status(stack).governor.state == device_pb2.GOVERNOR_STATE_LOST


@pytest.mark.usefixtures("alive")
def test_limits_on_a_device_that_is_not_there_are_refused_and_a_release_of_nothing_is_not(stack: Stack) -> None:
    limit(stack)
    message = admin_pb2.SetOperatorLimitsRequest(device="npu:7")
    with pytest.raises(grpc.RpcError) as refused:
        admin_pb2_grpc.AdminServiceStub(stack.control).SetOperatorLimits(message, timeout=5)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "there are cpu" in (refused.value.details() or "")
