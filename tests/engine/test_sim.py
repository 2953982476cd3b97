"""The simulated NPU: pace, memory and faults come from the board; without one it computes on."""

from pathlib import Path
from typing import Any, cast

import pytest

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.devices.sim import SimDevice
from coldplate_engine.runner import ModelError, ModelRunner
from coldplate_engine.step_timer import StepTimer
from coldplate_governor.board.client import BoardChipLost, BoardClient, BoardReply, BoardUnreachable
from support.fake_runner import VOCABULARY, FakeDevice

STEP = StepBatch([StreamSlice(1, [1, 2], 0, [0], 1)])


class FakeBoard:
    """Answers every step with ``reply``, or raises it."""

    def __init__(self, reply: BoardReply | Exception) -> None:
        self.reply = reply
        self.posted: list[tuple[int, float, int]] = []
        self.held_bytes = 0

    def post_step(self, chip: int, busy_s: float, tokens: int, held_bytes: int = 0) -> BoardReply:
        self.posted.append((chip, busy_s, tokens))
        self.held_bytes = held_bytes
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    def read(self, chip: int) -> dict[str, Any]:
        if isinstance(self.reply, Exception):
            raise self.reply
        return {"chip": "310P3 (simulated)"}


def make(reply: BoardReply | Exception) -> tuple[SimDevice, FakeBoard, list[float]]:
    board, slept = FakeBoard(reply), list[float]()
    return SimDevice(FakeDevice(), cast("BoardClient", board), 1, slept.append), board, slept


def loaded(device: SimDevice) -> ModelRunner:
    runner = device.load(Path(), "auto", None, lambda phase, share: None)
    runner.allocate_kv(2, 4)
    return runner


def test_a_step_is_posted_and_stretched() -> None:
    device, board, slept = make(BoardReply(2.5, None, None))
    device.after_step(0.2, 7)
    assert (device.name, device.chip, device.simulated) == ("npu:1", "310P3 (simulated)", True)
    assert board.posted[-1] == (1, 0.2, 7)
    assert slept == [pytest.approx(0.3)]


@pytest.mark.parametrize(("fault", "kind"), [("oom", "oom"), ("lost", "restart")])
def test_a_fault_of_the_board_becomes_an_error_of_the_next_step(fault: str, kind: str) -> None:
    device, board, _ = make(BoardReply(1.0, None, fault))
    runner = loaded(device)
    device.after_step(0.1, 1)
    with pytest.raises(RuntimeError) as caught:
        runner.execute(STEP, StepTimer())
    assert device.classify(caught.value).kind == kind
    board.reply = BoardReply(1.0, None, None)
    runner.execute(STEP, StepTimer())


def test_a_memory_limit_lets_smaller_steps_through() -> None:
    held = 1000 + 2 * 4 * 8
    device, _, _ = make(BoardReply(1.0, held + VOCABULARY * 4, None))
    runner = loaded(device)
    assert device.memory()[0] == held + VOCABULARY * 4
    with pytest.raises(RuntimeError, match="NPU out of memory") as caught:
        runner.execute(STEP, StepTimer())
    assert device.classify(caught.value).kind == "oom"
    runner.execute(StepBatch([StreamSlice(1, [1], 0, [0], 1)]), StepTimer())


def test_the_board_is_told_what_the_worker_holds() -> None:
    device, board, _ = make(BoardReply(1.0, None, None))
    loaded(device)
    device.after_step(0.1, 1)
    assert board.held_bytes == 1000 + 2 * 4 * 8


def test_without_a_board_it_computes_unpaced_and_asks_seldom(capsys: pytest.CaptureFixture[str]) -> None:
    device, board, slept = make(BoardUnreachable("no board at unix:/x"))
    runner = loaded(device)
    for _ in range(5):
        device.after_step(0.1, 1)
        runner.execute(STEP, StepTimer())
    assert len(board.posted) == 1
    assert slept == []
    assert capsys.readouterr().out.count("computing unpaced") == 1


def test_a_lost_chip_is_refused_at_the_start() -> None:
    with pytest.raises(ModelError, match="npu:1: chip 1 does not answer"):
        make(BoardChipLost("chip 1 does not answer: lost"))


def test_bfloat16_is_refused_on_a_chip_without_it() -> None:
    device, _, _ = make(BoardReply(1.0, None, None))
    with pytest.raises(ModelError, match=r"bfloat16: 310P3 \(simulated\) has no bfloat16"):
        device.load(Path(), "bfloat16", None, lambda phase, share: None)
