"""Admission over loopback: nobody is refused without need, refusals are quick and say when to come back."""

import statistics
import threading
from collections.abc import Iterator

import pytest

from coldplate.v1 import control_pb2, control_pb2_grpc, device_pb2, device_pb2_grpc
from support import case_models
from support.case_models import alphabet_answer
from support.client import Alive, Outcome, StreamCall, request, status, unary
from support.metrics import total
from support.processes import SLOW_DEVICE, Stack, until

TARGET_S = 1.0
ANSWER = 25  # half a second


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Two slots, steps of at least 20 ms: four answers of 25 tokens in a second at most."""
    with Stack(
        {"alphabet": case_models.alphabet()},
        workers=[SLOW_DEVICE],
        engine_args=["test-faults", "kv-cache-tokens=1024", "max-num-seqs=2"],
        server_args=[f"queue-wait-target-normal-s={TARGET_S}", "queue-wait-target-low-s=30"],
    ) as running:
        yield running


@pytest.fixture
def alive(stack: Stack) -> Iterator[Alive]:
    check = Alive(stack, "alphabet")
    yield check
    check.check()


def normal_class(stack: Stack) -> device_pb2.ClassLoad:
    stub = device_pb2_grpc.DeviceServiceStub(stack.channel)
    reply: device_pb2.GetLoadResponse = stub.GetLoad(device_pb2.GetLoadRequest(), timeout=5)
    return next(entry for entry in reply.load.classes if entry.priority == 2)


@pytest.mark.usefixtures("alive")
def test_one_after_another_nobody_is_refused(stack: Stack) -> None:
    before = total(stack, "coldplate_admission_refused_total")
    for _ in range(20):
        assert unary(stack, request("hello", max_tokens=2)).text == alphabet_answer(5, 2)
    assert total(stack, "coldplate_admission_refused_total") == before
    assert not normal_class(stack).HasField("in_flight_limit_tokens")


@pytest.mark.usefixtures("alive")
def test_a_small_caller_is_served_before_the_rest_of_a_flood(stack: Stack) -> None:
    """Low priority, which may wait for long."""
    flood: list[Outcome] = []

    def flooding() -> None:
        wanted = request("hello", max_tokens=ANSWER, priority=1)
        flood.append(unary(stack, wanted, metadata=[("x-coldplate-tenant", "flood")]))

    threads = [threading.Thread(target=flooding) for _ in range(12)]
    for thread in threads:
        thread.start()
    until("the flood waits", lambda: status(stack).queued >= 8)
    small = unary(stack, request("hello", max_tokens=ANSWER, priority=1), metadata=[("x-coldplate-tenant", "small")])
    still = status(stack).queued
    for thread in threads:
        thread.join()
    assert small.ok, small.message
    assert still >= 3
    assert all(outcome.ok for outcome in flood)


@pytest.mark.usefixtures("alive")
def test_an_overload_keeps_waits_near_their_target_and_refuses_the_rest_at_once(stack: Stack) -> None:
    """Twelve callers who each ask again at once: three times what two slots can do within the wait."""
    outcomes: list[Outcome] = []
    stop = threading.Event()

    def caller() -> None:
        while not stop.is_set():
            outcome = unary(stack, request("hello", max_tokens=ANSWER))
            outcomes.append(outcome)
            if not outcome.ok:
                stop.wait(0.1)

    threads = [threading.Thread(target=caller) for _ in range(12)]
    for thread in threads:
        thread.start()
    until("a limit", lambda: normal_class(stack).refused > 10, 30)
    stop.set()
    for thread in threads:
        thread.join()
    served = [outcome for outcome in outcomes if outcome.ok]
    refused = [outcome for outcome in outcomes if not outcome.ok]
    assert all(outcome.text == alphabet_answer(5, ANSWER) for outcome in served)
    assert {outcome.code.name for outcome in refused} == {"RESOURCE_EXHAUSTED"}
    assert {outcome.reason for outcome in refused} <= {"OVERLOADED", "SHED"}
    for outcome in refused:
        assert outcome.retry_after_s is not None
        assert int(outcome.trailers["grpc-retry-pushback-ms"]) == pytest.approx(outcome.retry_after_s * 1000, abs=1)
    at_once = [outcome.elapsed_s for outcome in refused if "after" not in outcome.message]
    assert statistics.median(at_once) < 0.05
    waits = [outcome.response.timings.queued.ToTimedelta().total_seconds() for outcome in served if outcome.response]
    assert max(waits) < 2 * TARGET_S + 1
    assert total(stack, "coldplate_queue_wait_target_seconds", {"class": "normal"}) == TARGET_S


@pytest.mark.usefixtures("alive")
def test_a_closed_device_tells_when_its_governor_expects_it_back(stack: Stack) -> None:
    directive = control_pb2.DeviceDirective(device="cpu", limits=device_pb2.DeviceLimits(admit=False))
    directive.retry_after.FromMilliseconds(7500)
    lease = control_pb2.ApplyLimitsRequest(governor="g", epoch=1, seq=1, devices=[directive])
    lease.ttl.FromSeconds(1)
    control_pb2_grpc.ControlServiceStub(stack.control).ApplyLimits(lease, timeout=5)
    refused = unary(stack, request("hello", max_tokens=2))
    assert (refused.code.name, refused.reason, refused.retry_after_s) == ("UNAVAILABLE", "ADMISSION_CLOSED", 7.5)
    assert refused.trailers["grpc-retry-pushback-ms"] == "7500"
    last = control_pb2.ApplyLimitsRequest(
        governor="g", epoch=1, seq=2, devices=[control_pb2.DeviceDirective(device="cpu")]
    )
    last.ttl.FromSeconds(60)
    control_pb2_grpc.ControlServiceStub(stack.control).ApplyLimits(last, timeout=5)


@pytest.mark.usefixtures("alive")
def test_who_cannot_start_in_time_is_told_before_the_time_is_over(stack: Stack) -> None:
    wanted = request("hello", max_tokens=40, priority=1)
    calls = [StreamCall(stack, wanted).start_reading() for _ in range(14)]
    until("starts are known", lambda: len([call for call in calls if call.outcome.end_time]) >= 6, 30)
    wanted.scheduling.queue_timeout.FromMilliseconds(500)
    hurried = unary(stack, wanted)
    assert (hurried.code.name, hurried.reason) == ("DEADLINE_EXCEEDED", "QUEUE_TIMEOUT")
    assert hurried.retry_after_s
    assert hurried.elapsed_s < 0.4
    assert all(call.result().ok for call in calls)
