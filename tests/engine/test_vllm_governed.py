"""Limits inside a scheduler that has vLLM's seams: what a step may hold, and how busy a core is."""

import sys
import time
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from coldplate_engine.vllm_worker.board import BOARD_VARIABLE, Board, CoreLimits, CoreState
from coldplate_engine.vllm_worker.governed import Governed
from coldplate_engine.vllm_worker.pace import CorePace

BUDGET = 64


@dataclass(eq=False)
class FakeRequest:
    request_id: str
    prompt: int
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    made: int = 0

    @property
    def num_tokens(self) -> int:
        return self.prompt + self.made

    @property
    def num_tokens_with_spec(self) -> int:
        return self.num_tokens

    @property
    def is_prefill_chunk(self) -> bool:
        return self.num_computed_tokens < self.num_tokens - (1 if self.made else 0)


@dataclass
class FakeOutput:
    num_scheduled_tokens: dict[str, int]
    preempted_req_ids: set[str] = field(default_factory=set)
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


class FakeScheduler:
    """vLLM's order: running requests first, each up to what is left of the budget, then waiting ones while admitted."""

    def __init__(self) -> None:
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_index=0))
        self.max_num_active_reqs = self.max_num_running_reqs = 8
        self.max_num_scheduled_tokens = BUDGET
        self.block_size = 16
        self.running: list[FakeRequest] = []
        self.waiting: list[FakeRequest] = []
        self.requests: dict[str, FakeRequest] = {}
        self.kv_cache_manager = SimpleNamespace(
            block_pool=SimpleNamespace(num_gpu_blocks=101, get_num_free_blocks=lambda: 100 - len(self.running)),
            get_blocks=lambda name: SimpleNamespace(blocks=(self.blocks.get(name, []),)),
        )
        self.blocks: dict[str, list[SimpleNamespace]] = {}

    def add_request(self, request: FakeRequest) -> None:
        self.waiting.append(request)
        self.requests[request.request_id] = request

    def schedule(self) -> FakeOutput:
        left, scheduled = self.max_num_scheduled_tokens, {}
        for request in self.running:
            count = min(left, request.num_tokens - request.num_computed_tokens)
            if count:
                scheduled[request.request_id] = count
                left -= count
        while self.waiting and left > 0 and len(self.running) < self.max_num_active_reqs:
            request = self.waiting.pop(0)
            self.running.append(request)
            scheduled[request.request_id] = count = min(left, request.prompt)
            left -= count
        return FakeOutput(scheduled)

    def update_from_output(self, output: FakeOutput, made: Any) -> dict[int, Any]:
        for name, count in output.num_scheduled_tokens.items():
            request = self.requests[name]
            request.num_computed_tokens += count
            if request.num_computed_tokens == request.num_tokens:
                request.made += 1
        return {}

    def finish_requests(self, names: Any, status: Any) -> list[FakeRequest]:
        return [self.requests.pop(name) for name in list(names)]


class Scheduler(Governed, FakeScheduler):
    pass


NOTHING_BROKEN = SimpleNamespace(num_nans_in_logits=None, sampled_token_ids=[], req_id_to_index={})


@dataclass
class Core:
    board: Board
    scheduler: Scheduler
    sent: int = 0

    def limit(self, **limits: Any) -> None:
        self.sent += 1
        self.board.set_limits(CoreLimits(self.sent, **limits))

    def add(self, *prompts: int) -> None:
        for prompt in prompts:
            self.scheduler.add_request(FakeRequest(f"r{len(self.scheduler.requests)}", prompt))

    def step(self, busy_s: float = 0.0) -> dict[str, int]:
        output = self.scheduler.schedule()
        time.sleep(busy_s)
        self.scheduler.update_from_output(output, NOTHING_BROKEN)
        return dict(output.num_scheduled_tokens)

    @property
    def state(self) -> CoreState:
        state = self.board.state(0)
        assert state is not None
        return state


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    board = Board.create()
    monkeypatch.setenv(BOARD_VARIABLE, board.address)
    return Core(board, Scheduler())


def test_without_limits_a_step_is_vllms_own(core: Core) -> None:
    core.add(40, 40)
    assert core.step() == {"r0": 40, "r1": 24}
    assert core.state.prefill_tokens == 64
    assert core.step() == {"r0": 1, "r1": 16}
    assert (core.state.prefill_tokens, core.state.decode_tokens, core.state.steps) == (80, 1, 2)


def test_a_prefill_budget_comes_on_top_of_the_decodes_in_the_next_step(core: Core) -> None:
    core.add(10, 10)
    core.step()
    core.limit(max_prefill_tokens=4)
    core.add(20)
    assert core.step() == {"r0": 1, "r1": 1, "r2": 4}
    assert core.state.limits_seq == 1
    core.limit(max_prefill_tokens=0)
    assert core.step() == {"r0": 1, "r1": 1}
    core.limit()
    assert core.step() == {"r0": 1, "r1": 1, "r2": 16}


def test_a_running_prefill_takes_no_decode_of_a_later_stream(core: Core) -> None:
    core.add(100, 10)
    core.step()
    core.scheduler.running.append(core.scheduler.waiting.pop())
    core.scheduler.running[1].num_computed_tokens, core.scheduler.running[1].made = 10, 1
    core.limit(max_prefill_tokens=2)
    assert core.step() == {"r1": 1, "r0": 2}


def test_a_batch_cap_stops_admission_and_keeps_what_runs(core: Core) -> None:
    core.add(1, 1, 1)
    core.step()
    core.limit(max_batch=2)
    core.add(1, 1)
    assert sorted(core.step()) == ["r0", "r1", "r2"]
    assert core.state.running == 3
    del core.scheduler.running[0:2]
    assert sorted(core.step()) == ["r2", "r3"]
    core.limit()
    assert sorted(core.step()) == ["r2", "r3", "r4"]


def test_where_slots_are_the_only_cap_they_are_never_fewer_than_the_running_streams(core: Core) -> None:
    """Older vLLMs have no number for admission apart and assert as much."""
    scheduler = core.scheduler
    scheduler._admission = "max_num_running_reqs"
    core.add(1, 1, 1)
    core.step()
    core.limit(max_batch=1)
    core.step()
    assert scheduler.max_num_running_reqs == 3
    core.limit()
    core.step()
    assert scheduler.max_num_running_reqs == 8


@pytest.mark.parametrize("duty", [0.5, 0.2])
def test_a_duty_limit_keeps_the_share_of_busy_time(core: Core, duty: float) -> None:
    core.add(1)
    core.limit(duty=duty)
    start = time.perf_counter()
    while time.perf_counter() - start < 1.0:
        core.step(busy_s=0.004)
    wall = time.perf_counter() - start
    busy = core.state.device_s + core.state.schedule_s + core.state.update_s
    assert busy / wall == pytest.approx(duty, rel=0.1)
    assert core.state.paced_s == pytest.approx(wall - busy, rel=0.15)


def test_the_release_of_a_tiny_duty_is_felt_at_once(core: Core) -> None:
    core.add(1)
    core.limit(duty=5e-324)
    core.step(busy_s=0.002)
    start = time.perf_counter()
    assert core.step() == {}
    assert time.perf_counter() - start < 0.2  # the core looks after its inbox
    core.limit()
    start = time.perf_counter()
    assert core.step() == {"r0": 1}
    assert time.perf_counter() - start < 0.05


def test_a_core_that_may_not_start_anything_does_not_spin(core: Core) -> None:
    core.limit(max_prefill_tokens=0)
    core.add(5)
    before = time.process_time()
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < 0.5:
        assert core.step() == {}
        steps += 1
    assert steps < 60
    assert time.process_time() - before < 0.2
    core.limit()
    assert core.step() == {"r0": 5}


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_overlapping_batches_are_let_run_out_before_a_rest() -> None:
    clock = Time()
    pace = CorePace(lambda: clock.now, clock.sleep)
    pace.set_duty(0.5)
    pace.in_flight = 2
    clock.now += 0.010
    assert pace.rest(lambda: None) is False  # not yet worth a gap
    clock.now += 0.020
    assert pace.rest(lambda: None) is True
    clock.now += 0.010
    pace.account()
    pace.in_flight = 0
    before = clock.now
    assert pace.rest(lambda: None) is False
    assert clock.now - before == pytest.approx(0.040, abs=0.003)
    assert pace.paced_s == pytest.approx(0.040, abs=0.003)


def blocks(*numbers: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(block_id=number, ref_cnt=1, is_null=number == 0) for number in numbers]


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vLLM, where there is none."""
    engine, request = ModuleType("vllm.v1.engine"), ModuleType("vllm.v1.request")
    engine.FinishReason = SimpleNamespace(ERROR="error")  # type: ignore[attr-defined]
    request.RequestStatus = SimpleNamespace(FINISHED_ERROR="failed")  # type: ignore[attr-defined]
    for name, module in (("vllm.v1.engine", engine), ("vllm.v1.request", request)):
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("statuses")
def test_requests_whose_logits_held_nan_are_ended(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    core.add(1, 1)
    output = core.scheduler.schedule()
    told = [
        SimpleNamespace(request_id=name, new_token_ids=[1], new_logprobs=None, finish_reason=None, stop_reason=None)
        for name in ("r0", "r1")
    ]
    outputs = {0: SimpleNamespace(outputs=told)}
    monkeypatch.setattr(FakeScheduler, "update_from_output", lambda self, planned, made: outputs)
    core.scheduler.update_from_output(
        output, SimpleNamespace(num_nans_in_logits={"r0": 3, "r1": 0}, sampled_token_ids=[], req_id_to_index={})
    )
    assert (told[0].new_token_ids, told[0].finish_reason, told[0].stop_reason) == ([], "error", "non_finite_logits")
    assert told[1].new_token_ids == [1]
    assert list(core.scheduler.requests) == ["r1"]


@pytest.mark.usefixtures("statuses")
def test_cache_that_may_hold_nan_is_never_used_again(core: Core) -> None:
    core.add(1, 1)
    output = core.scheduler.schedule()
    core.scheduler.blocks = {"r0": blocks(0, 7, 8), "r1": blocks(9)}
    made = SimpleNamespace(num_nans_in_logits={"r0": 1}, sampled_token_ids=[], req_id_to_index={})
    core.scheduler.update_from_output(output, made)
    assert [block.ref_cnt for block in core.scheduler.blocks["r0"]] == [1, 2, 2]
    assert [block.ref_cnt for block in core.scheduler.blocks["r1"]] == [1]
    core.scheduler.blocks["r1"] = blocks(*range(20, 44))
    made.num_nans_in_logits = {"r1": 1}
    with pytest.raises(RuntimeError, match="26 of 101 KV cache blocks may hold NaN"):
        core.scheduler.update_from_output(core.scheduler.schedule(), made)
