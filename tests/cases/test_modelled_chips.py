"""Three modelled chips behind one server: every token known, limits and faults as on a real device, and one lost."""

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldplate.v1 import device_pb2, model_pb2, model_pb2_grpc
from coldplate_governor.board.client import BoardClient
from support import modelled, processes
from support.client import Outcome, StreamCall, limit, request, status, unary
from support.processes import Stack, until

pytestmark = pytest.mark.slow

CHIPS = 3
SIZE = "qwen3-1.7b-w8a8"
STEP_S = 0.0127  # of a decode of that model on a 310P


@dataclass(frozen=True, slots=True)
class Modelled:
    stack: Stack
    board: BoardClient
    folder: Path

    def answer(self, prompt: list[int], count: int) -> list[int]:
        return modelled.script(self.folder).answer(prompt, count)

    def start(self, prompt: list[int], tokens: int) -> StreamCall:
        message = request(prompt, max_tokens=tokens, token_ids=True, ignore_end_of_text=True)
        return StreamCall(self.stack, message)

    def state(self, device: str) -> int:
        return next(one.state for one in status(self.stack).devices if one.device == device)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Modelled]:
    folder = modelled.model_folder(tmp_path_factory.mktemp("modelled"))
    with processes.board(f"--count={CHIPS}", "--ambient-celsius=-20") as (_, address), BoardClient(address) as board:
        workers = [f"sim:{address}#npu:{chip},modelled={SIZE}" for chip in range(CHIPS)]
        with Stack({"demo": folder}, workers=workers, server_args=["governor=optional"]) as stack:
            made = Modelled(stack, board, folder)
            until("every chip", lambda: all(one.kv_tokens_total for one in status(stack).devices), 60)
            yield made


@pytest.fixture(autouse=True)
def sound(service: Modelled) -> Iterator[None]:
    """After each test every chip serves, without limits and faults."""
    yield
    limit(service.stack)
    service.board.poke("restore")
    serving = device_pb2.DEVICE_STATE_SERVING
    until("all serve", lambda: all(service.state(f"npu:{chip}") == serving for chip in range(CHIPS)), 60)


def gap_s(outcome: Outcome) -> float:
    times = outcome.delta_times
    return statistics.median(after - before for before, after in itertools.pairwise(times))


def test_every_chip_says_what_the_script_says_and_is_shown_as_simulated(service: Modelled) -> None:
    prompts = [[65 + number, 97, 98] for number in range(3 * CHIPS)]
    calls = [service.start(prompt, 60).start_reading() for prompt in prompts]
    outcomes = [call.result() for call in calls]
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.ok, outcome.message
        assert outcome.token_ids == service.answer(prompt, 60)
        assert outcome.text == bytes(outcome.token_ids).decode()
    assert {outcome.started.device for outcome in outcomes if outcome.started} == {"npu:0", "npu:1", "npu:2"}
    for device in status(service.stack).devices:
        assert (device.simulated, device.chip) == (True, "310P3 (simulated, scripted tokens)")
    models = model_pb2_grpc.ModelServiceStub(service.stack.channel).ListModels(model_pb2.ListModelsRequest(), timeout=5)
    for replica in models.models[0].replicas:
        assert replica.engine_settings["simulated"] == f"scripted tokens at the pace of {SIZE}"


def test_duty_and_a_slow_clock_stretch_the_steps(service: Modelled) -> None:
    limit(service.stack, duty=0.25)
    paced = service.start([1, 2, 3], 30).read_all()
    assert gap_s(paced) >= 3 * STEP_S
    limit(service.stack)
    service.board.poke("cap", share=0.25)
    slow = service.start([1, 2, 3], 30).read_all()
    assert gap_s(slow) >= 3 * STEP_S
    assert paced.token_ids == slow.token_ids == service.answer([1, 2, 3], 30)


def test_running_out_of_memory_costs_no_token(service: Modelled) -> None:
    calls = [service.start([7, number], 40).read_deltas(2).start_reading() for number in range(2 * CHIPS)]
    service.board.poke("oom", steps=2)
    for number, call in enumerate(calls):
        assert call.result().token_ids == service.answer([7, number], 40)


def test_a_lost_chip_costs_its_own_streams_and_ends_none_wrongly(service: Modelled) -> None:
    prompts = [[50 + number, 9] for number in range(3 * CHIPS)]
    calls = [service.start(prompt, 400).read_deltas(3).start_reading() for prompt in prompts]
    service.board.poke("lose", 1)
    outcomes = [call.result() for call in calls]
    on_it = sum(outcome.started is not None and outcome.started.device == "npu:1" for outcome in outcomes)
    lost = 0
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        whole = service.answer(prompt, 400)
        assert outcome.started is not None
        if outcome.ok:
            assert outcome.token_ids == whole
        else:
            lost += 1
            assert outcome.started.device == "npu:1"
            assert outcome.code.name == "ABORTED"
            assert 3 <= len(outcome.token_ids) < 400
            assert outcome.token_ids == whole[: len(outcome.token_ids)], "what was sent is a true beginning"
    assert lost == on_it > 0
    again = [unary(service.stack, request([number], max_tokens=8, token_ids=True)) for number in range(4)]
    assert [answer.token_ids for answer in again] == [service.answer([number], 8) for number in range(4)]
    assert service.state("npu:1") == device_pb2.DEVICE_STATE_LOST


def test_the_board_shows_what_the_workers_hold(service: Modelled) -> None:
    for chip in range(CHIPS):
        said = service.board.read(chip)
        ((pid, _, held),) = said["processes"]
        assert pid in service.stack.worker_pids()
        assert held > 1_700_000_000, "its weights and its cache"
