"""The plan grammar of the faulty device, and what each action does."""

import asyncio
from pathlib import Path

import pytest
import torch

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.devices.fault import FaultAction, FaultDevice, parse_plan
from coldplate_engine.devices.registry import open_device
from coldplate_engine.runner import ModelError, ModelRunner
from coldplate_engine.step_timer import StepTimer
from support.fake_runner import FakeDevice

STEP = StepBatch([StreamSlice(1, [1, 2], 0, [0], 1)])


def loaded(plan: str) -> tuple[FaultDevice, ModelRunner]:
    device = FaultDevice(parse_plan(plan), FakeDevice())
    runner = device.load(Path(), "auto", None, lambda phase, share: None)
    runner.allocate_kv(2, 4)
    return device, runner


def outcomes(plan: str, steps: int) -> list[str]:
    device, runner = loaded(plan)
    device.arm()
    seen = []
    for _ in range(steps):
        try:
            runner.execute(STEP, StepTimer())
            seen.append("ok")
        except BaseException as error:
            seen.append(device.classify(error).kind)
    return seen


@pytest.mark.parametrize(
    ("plan", "actions"),
    [
        ("oom@5", [FaultAction("oom", "", 5, 5)]),
        ("oom@5-", [FaultAction("oom", "", 5, None)]),
        ("delay=20ms@1-3", [FaultAction("delay", "20ms", 1, 3)]),
        ("alloc-oom=200MB@3", [FaultAction("alloc-oom", "200MB", 3, 3)]),
        ("exit@2+hang@9", [FaultAction("exit", "", 2, 2), FaultAction("hang", "", 9, 9)]),
        ("exit=9@2", [FaultAction("exit", "9", 2, 2)]),
        (
            "raise=a+b, mail me@home@4-+cancelled@1",
            [FaultAction("raise", "a+b, mail me@home", 4, None), FaultAction("cancelled", "", 1, 1)],
        ),
    ],
)
def test_plans(plan: str, actions: list[FaultAction]) -> None:
    assert parse_plan(plan) == actions


@pytest.mark.parametrize(
    "plan",
    ["", "oom", "oom@", "oom@0", "oom@5-3", "oom=1@5", "melt@5", "delay@5", "delay=fast@5", "raise=@5", "exit=x@1"],
)
def test_plans_that_make_no_sense_are_named(plan: str) -> None:
    with pytest.raises(ModelError, match="fault plan"):
        parse_plan(plan)


@pytest.mark.parametrize(
    ("plan", "kinds"),
    [
        ("oom@2", ["ok", "oom", "ok", "ok"]),
        ("oom@2-3", ["ok", "oom", "oom", "ok"]),
        ("alloc-oom=1MB@1", ["oom", "ok", "ok", "ok"]),
        ("raise=NPU out of memory. Tried to allocate 22.00 MiB@3-", ["ok", "ok", "oom", "oom"]),
        ("raise=error code is 507035@4", ["ok", "ok", "ok", "restart"]),
        ("cancelled@1+raise=odd@2", ["bug", "bug", "ok", "ok"]),
    ],
)
def test_actions_happen_on_their_steps(plan: str, kinds: list[str]) -> None:
    assert outcomes(plan, 4) == kinds


def test_errors_are_the_real_ones() -> None:
    for plan, kind in (("oom@1", torch.OutOfMemoryError), ("cancelled@1", asyncio.CancelledError)):
        device, runner = loaded(plan)
        device.arm()
        with pytest.raises(kind):
            runner.execute(STEP, StepTimer())


def test_the_warm_up_does_not_count() -> None:
    device, runner = loaded("oom@1")
    runner.execute(STEP, StepTimer())
    device.arm()
    with pytest.raises(torch.OutOfMemoryError):
        runner.execute(STEP, StepTimer())


def test_a_delay_is_device_time() -> None:
    device, runner = loaded("delay=10ms@1-")
    device.arm()
    timer = StepTimer()
    runner.execute(STEP, timer)
    assert timer.seconds["device"] >= 0.01


@pytest.mark.parametrize(
    ("spec", "allowed", "said"),
    [
        ("fault:oom@1,cpu", False, "--test-faults"),
        ("fault:oom@1", True, "expected fault:PLAN,DEVICE"),
        ("fault:oom@1,gpu", True, "unknown --device 'gpu'"),
        ("npu:0", True, "no native NPU support"),
        ("cuda", True, "unknown --device 'cuda'"),
        ("sim:unix:/tmp/board.sock", True, "expected sim:ADDRESS#npu:N"),
        ("sim:tcp:1#npu:0", True, "expected unix:/path"),
        ("sim:unix:/tmp/board.sock#cpu", True, "a board simulates NPUs"),
    ],
)
def test_devices_that_cannot_be_opened_are_refused_by_name(spec: str, allowed: bool, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        open_device(spec, 1, allowed)
