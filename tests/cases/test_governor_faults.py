"""What goes wrong around a governor and must never harm serving: two of them, absent devices, impossible limits."""

import math
import shutil
import signal
from collections.abc import Iterator

import grpc
import pytest

from coldplate.v1 import control_pb2, control_pb2_grpc, device_pb2
from support import case_models
from support.case_models import alphabet_answer
from support.client import Alive, StreamCall, request, status
from support.processes import SLOW_DEVICE, Stack, governor, until

PROMPT = "x" * 10
QUIET = ("--device=cpu", "--sensor=cpu@psutil")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Steps of at least 20 ms, and no governor at first."""
    options = ["test-faults", "kv-cache-tokens=2048", "max-num-seqs=8"]
    with Stack({"alphabet": case_models.alphabet()}, workers=[SLOW_DEVICE], engine_args=options) as running:
        yield running


@pytest.fixture
def alive(stack: Stack) -> Iterator[Alive]:
    check = Alive(stack, "alphabet")
    yield check
    check.check()


def holder(stack: Stack) -> str:
    now = status(stack).governor
    return now.name if now.state == device_pb2.GOVERNOR_STATE_GOVERNED else ""


@pytest.mark.usefixtures("alive")
def test_of_two_governors_one_is_refused_until_the_other_is_gone_and_streams_do_not_notice(stack: Stack) -> None:
    running = StreamCall(stack, request(PROMPT, max_tokens=240)).read_deltas(1).start_reading()
    with governor(stack, *QUIET, "--name=first", "--lease-s=2") as first:
        until("the first holds the lease", lambda: holder(stack) == "first", 30)
        with governor(stack, *QUIET, "--name=second", "--lease-s=2") as second:
            until("the second is refused", lambda: "another governor holds the lease" in second.log(), 30)
            assert "governor 'first' holds the lease" in second.log()
            assert holder(stack) == "first"
            first.kill()
            until("the second takes over by itself", lambda: holder(stack) == "second", 10)
            assert second.log().count("another governor holds the lease") == 1, "told once, not every second"
            with governor(stack, *QUIET, "--name=second", "--lease-s=2"):
                until("the older start gives way", lambda: "a newer start of this governor" in second.log(), 30)
    assert running.result().text == alphabet_answer(len(PROMPT), 240)


@pytest.mark.usefixtures("alive")
def test_a_device_that_is_not_there_is_named_and_the_others_are_governed(stack: Stack) -> None:
    with governor(stack, *QUIET, "--device=npu:7") as process:
        until("it is named", lambda: "the server has no such device" in process.log(), 30)
        assert "npu:7" in process.log()
        until("the CPU is governed", lambda: status(stack).devices[0].governor_mode == "NOMINAL", 10)
        assert [device.device for device in status(stack).devices] == ["cpu"]


@pytest.mark.usefixtures("alive")
def test_no_npu_smi_on_this_machine_costs_its_readings_and_nothing_else(stack: Stack) -> None:
    if shutil.which("npu-smi"):
        pytest.skip("there is one here")
    flags = (*QUIET, "--device=npu:0", "--sensor=npu:0@npu-smi", "--frequency=npu:0@work-level")
    with governor(stack, *flags, f"--frequency-state={stack.folder}/clocks") as process:
        until("the lever is dropped", lambda: "frequency lever dropped" in process.log(), 30)
        assert "npu-smi is not on this machine" in process.log()
        until("the CPU is governed", lambda: status(stack).devices[0].governor_mode == "NOMINAL", 10)
        assert process.exit_code is None


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize(
    "limits",
    [
        {"duty": math.nan},
        {"duty": -1.0},
        {"duty": 0.0},
        {"duty": 1.5},
        {"max_batch": 0},
        {"max_batch": -(2**31)},
        {"min_priority": 9},
        {"cpu_share": math.inf},
        {"max_context_tokens": 0},
    ],
)
def test_limits_that_cannot_be_are_refused_by_name_and_those_before_go_on(
    stack: Stack, limits: dict[str, float]
) -> None:
    stub = control_pb2_grpc.ControlServiceStub(stack.control)
    until("no other lease", lambda: not holder(stack), 10)
    epoch = status(stack).governor.epoch + 1
    stub.ApplyLimits(call(epoch, 1, max_batch=7), timeout=5)
    with pytest.raises(grpc.RpcError) as refused:
        stub.ApplyLimits(call(epoch, 2, **limits), timeout=5)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert next(iter(limits)) in (refused.value.details() or "")
    assert status(stack).devices[0].limits.max_batch == 7


def call(epoch: int, seq: int, **limits: float) -> control_pb2.ApplyLimitsRequest:
    wanted = device_pb2.DeviceLimits(**limits)  # type: ignore[arg-type]
    directive = control_pb2.DeviceDirective(device="cpu", limits=wanted)
    message = control_pb2.ApplyLimitsRequest(governor="by hand", epoch=epoch, seq=seq, devices=[directive])
    message.ttl.FromSeconds(1)
    return message


@pytest.mark.usefixtures("alive")
def test_a_governor_that_was_stopped_and_goes_on_is_taken_back(stack: Stack) -> None:
    with governor(stack, *QUIET, "--name=sleeper", "--lease-s=1") as process:
        until("it holds the lease", lambda: holder(stack) == "sleeper", 30)
        process.signal(signal.SIGSTOP)
        until("its lease runs out", lambda: not holder(stack), 10)
        process.signal(signal.SIGCONT)
        until("it holds the lease again", lambda: holder(stack) == "sleeper", 10)
