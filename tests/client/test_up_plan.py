"""The commands a stack is started with."""

from pathlib import Path

from coldplate_client.up import StackPlan

_HERE = Path("/run/x")


def plan(**values: object) -> StackPlan:
    return StackPlan(Path("/model"), _HERE, _HERE / "control.sock", **values)  # type: ignore[arg-type]


def test_a_board_gets_a_worker_on_each_chip_beside_the_cpu() -> None:
    made = plan(board="310p", board_chips=2)
    assert made.worker_specs == ("cpu", "sim:unix:/run/x/board.sock#npu:0", "sim:unix:/run/x/board.sock#npu:1")
    assert made.devices() == ["cpu", "npu:0", "npu:1"]
    assert made.board_command()[-4:-2] == ["--count", "2"]


def test_modelled_chips_are_alone_and_named() -> None:
    own = plan(board="310p", board_chips=3, modelled="")
    assert own.worker_specs[2] == "sim:unix:/run/x/board.sock#npu:2,modelled"
    assert own.devices() == ["npu:0", "npu:1", "npu:2"]
    named = plan(board="310p", modelled="qwen3-8b-w8a8")
    assert named.worker_specs == ("sim:unix:/run/x/board.sock#npu:0,modelled=qwen3-8b-w8a8",)


def test_server_and_governor_go_by_the_profile_of_the_boards_chips() -> None:
    made = plan(board="310p", board_chips=3, modelled="")
    assert "--profile=npu:0=310p-duo" in made.server_command()
    assert "--device=npu:1=310p-duo" in made.governor_command()
    assert made.board_profiles() == {"npu:0": "310p-duo", "npu:1": "310p-duo", "npu:2": "310p-pro"}


def test_workers_given_by_hand_are_taken_as_they_are() -> None:
    made = plan(board="310p", workers=("demo@sim:unix:/b.sock#npu:0,modelled", "cpu", "vllm:npu:0-3", "attach=unix:/w"))
    assert made.devices() == ["npu:0", "cpu"]
