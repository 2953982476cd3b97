"""Admission, with a worker whose every message the test writes: who starts, who waits, who is refused and why."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldplate.clock import ManualClock
from coldplate.limits import Limits
from coldplate_server.admission.policy import AdmissionPolicy
from coldplate_server.dispatcher import Dispatcher
from coldplate_server.errors import (
    Aborted,
    AdmissionClosed,
    DeadlineExceeded,
    Draining,
    EngineLost,
    NoWorker,
    QueueFull,
    QueueTimeout,
    RequestError,
    Shed,
)
from coldplate_server.journal import Journal, StreamRecord
from coldplate_server.limit_book import LimitBook
from coldplate_server.request import FallbackPolicy, Priority, SamplingParams
from coldplate_server.request_queue import RequestQueue
from coldplate_server.settings import ServedModel, WorkerSpec
from coldplate_server.workers.fleet import Fleet
from coldplate_server.workers.link import WorkerLink
from support.fake_engine import FakeEngine

QUEUE_LIMIT = 3
MAX_WAIT_S = 10.0


@dataclass
class Service:
    """A dispatcher over one attached worker with four slots; its clock stands until moved."""

    engine: FakeEngine
    clock: ManualClock
    limits: LimitBook
    dispatcher: Dispatcher
    news: asyncio.Event

    def worker_changed(self, link: WorkerLink) -> None:
        self.dispatcher.tick()
        self.news.set()

    def step_taken(self, link: WorkerLink, tokens: int) -> None:
        self.dispatcher.pump()
        self.news.set()

    @property
    def link(self) -> WorkerLink:
        return self.dispatcher.fleet.workers[0].link

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self.news.clear()
                await self.news.wait()

    def send(
        self,
        request_id: str,
        priority: Priority = Priority.NORMAL,
        *,
        max_wait_s: float = MAX_WAIT_S,
        **changes: object,
    ) -> StreamRecord:
        values: dict[str, object] = {
            "number": self.dispatcher.journal.next_number(),
            "request_id": request_id,
            "model": "m",
            "prompt_ids": [1] * 8,
            "sampling": SamplingParams(seed=0),
            "max_tokens": 8,
            "context_limited": False,
            "stop_token_ids": frozenset(),
            "priority": priority,
            "fallback": FallbackPolicy.SAME_MODEL,
            "arrived": self.clock.now(),
        }
        record = StreamRecord(**{**values, **changes})  # type: ignore[arg-type]
        self.dispatcher.enqueue([record], max_wait_s)
        return record

    async def fill(self) -> list[StreamRecord]:
        """Take all four slots."""
        records = [self.send(f"running {index}") for index in range(4)]
        for _ in records:
            await self.engine.command()
        assert all(record.submitted is not None for record in records)
        return records


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with FakeEngine(tmp_path / "e.sock") as engine:
        clock = ManualClock()
        limits = LimitBook(clock, {"cpu": Limits(duty=0.5)}, frozenset())
        dispatcher = Dispatcher(Journal(), RequestQueue(AdmissionPolicy(max_waiting=QUEUE_LIMIT)), clock)
        made = Service(engine, clock, limits, dispatcher, asyncio.Event())
        specs = [WorkerSpec("worker-0", ServedModel("m", Path("m")), address=engine.address)]
        dispatcher.fleet = Fleet(specs, lambda spec, listen, workers: [], tmp_path, limits, clock, made)
        dispatcher.fleet.start()
        await made.until(lambda: made.link.ready)
        yield made
        await dispatcher.fleet.stop()


async def test_what_has_no_room_waits_and_starts_when_credit_comes(service: Service) -> None:
    await service.fill()
    waiting = service.send("waiting")
    assert waiting.submitted is None
    assert service.dispatcher.queue.position(waiting) == 0
    service.engine.step(credit=(4, 1, 64))
    await service.until(lambda: waiting.submitted is not None)
    assert (await service.engine.command()).submit.request_id == "waiting"
    assert len(service.dispatcher.queue) == 0


async def test_a_higher_class_starts_first_and_a_large_request_is_not_passed_by_its_own(service: Service) -> None:
    await service.fill()
    large = service.send("large", prompt_ids=[1] * 120)
    small = service.send("small")
    high = service.send("high", Priority.HIGH)
    service.engine.step(credit=(4, 2, 64))
    await service.until(lambda: high.submitted is not None)
    assert large.submitted is None
    assert small.submitted is None, "a later request of the class must not starve the large one"
    service.engine.step(credit=(5, 2, 256))
    await service.until(lambda: large.submitted is not None and small.submitted is not None)


async def test_a_request_that_a_limit_makes_too_large_holds_up_nobody(service: Service) -> None:
    await service.fill()
    large = service.send("large", max_tokens=120)
    service.limits.set_operator("cpu", Limits(max_context_tokens=100))
    small = service.send("small")
    service.engine.step(credit=(4, 2, 256))
    await service.until(lambda: small.submitted is not None)
    assert large.submitted is None
    assert service.send("at once").submitted is not None
    service.limits.set_operator("cpu", Limits())
    service.engine.step(credit=(6, 2, 256))
    await service.until(lambda: large.submitted is not None)


async def test_who_will_not_wait_starts_at_once_or_is_refused_at_once(service: Service) -> None:
    assert service.send("first", max_wait_s=0).submitted is not None
    for index in range(3):
        service.send(f"running {index}")
    with pytest.raises(QueueTimeout):
        service.send("no room", max_wait_s=0)
    assert not service.dispatcher.journal.get("no room")
    assert len(service.dispatcher.queue) == 0


async def test_a_full_queue_refuses_and_forgets_the_request(service: Service) -> None:
    await service.fill()
    for index in range(QUEUE_LIMIT):
        service.send(f"waiting {index}")
    with pytest.raises(QueueFull) as refused:
        service.send("one too many")
    assert refused.value.retry_after_s
    assert not service.dispatcher.journal.get("one too many")


async def test_who_waits_too_long_goes_with_a_queue_timeout(service: Service) -> None:
    await service.fill()
    waiting = service.send("waiting")
    service.clock.advance(MAX_WAIT_S - 0.1)
    service.dispatcher.tick()
    assert waiting.error is None
    service.clock.advance(0.2)
    service.dispatcher.tick()
    assert isinstance(waiting.error, QueueTimeout)
    assert len(service.dispatcher.queue) == 0


async def test_a_deadline_that_has_passed_is_refused_before_any_work(service: Service) -> None:
    service.clock.advance(5)
    with pytest.raises(DeadlineExceeded):
        service.send("late", deadline=4.0)
    assert len(service.dispatcher.journal) == 0
    await service.fill()
    waiting = service.send("in time", deadline=6.0)
    service.clock.advance(2)
    service.engine.step(credit=(4, 1, 64))
    await service.until(lambda: waiting.error is not None)
    assert isinstance(waiting.error, DeadlineExceeded)
    assert waiting.submitted is None


async def test_a_lost_worker_ends_who_ran_and_who_waited(service: Service) -> None:
    running = await service.fill()
    waiting = service.send("waiting")
    service.engine.hang_up()
    await service.until(lambda: waiting.over)
    assert all(isinstance(record.error, EngineLost) for record in running)
    assert isinstance(waiting.error, NoWorker)
    await service.until(lambda: service.link.ready)
    assert service.send("after").submitted is not None


@pytest.mark.parametrize(
    ("limits", "priority", "error"),
    [
        (Limits(admit=False), Priority.HIGH, AdmissionClosed),
        (Limits(min_priority=3), Priority.NORMAL, Shed),
        (Limits(min_priority=2), Priority.LOW, Shed),
    ],
)
async def test_limits_refuse_at_the_door_and_let_in_again(
    service: Service, limits: Limits, priority: Priority, error: type[RequestError]
) -> None:
    service.limits.set_operator("cpu", limits)
    with pytest.raises(error) as refused:
        service.send("refused", priority)
    assert refused.value.retry_after_s
    service.limits.set_operator("cpu", Limits())
    assert service.send("let in", priority).submitted is not None


async def test_a_class_that_is_shed_leaves_the_queue_and_what_runs_or_has_begun_stays(service: Service) -> None:
    running = [service.send(f"running {index}", Priority.LOW) for index in range(4)]
    waiting = {priority: service.send(priority.name, priority) for priority in Priority}
    service.limits.set_operator("cpu", Limits(min_priority=2))
    service.dispatcher.tick()
    shed = waiting.pop(Priority.LOW)
    assert isinstance(shed.error, Shed)
    assert shed.error.retry_after_s
    assert len(service.dispatcher.queue) == 2
    assert not any(record.over for record in [*running, *waiting.values()])


async def test_a_closed_device_sheds_nobody_who_waits(service: Service) -> None:
    await service.fill()
    waiting = service.send("waiting", Priority.LOW)
    service.limits.set_operator("cpu", Limits(admit=False))
    service.dispatcher.tick()
    assert waiting.error is None


async def test_a_device_whose_prefill_is_paused_gets_no_new_streams(service: Service) -> None:
    running = service.send("running")
    service.limits.set_operator("cpu", Limits(max_prefill_tokens=0))
    service.dispatcher.tick()
    waiting = service.send("waiting")
    assert waiting.submitted is None
    assert not running.over
    service.limits.set_operator("cpu", Limits(max_prefill_tokens=1))
    service.dispatcher.tick()
    assert waiting.submitted is not None


async def test_a_batch_cap_holds_new_streams_back_and_ends_none(service: Service) -> None:
    running = [service.send("first"), service.send("second")]
    service.limits.set_operator("cpu", Limits(max_batch=1))
    service.dispatcher.tick()
    third = service.send("third")
    assert third.submitted is None
    assert not any(record.over for record in running)
    service.limits.set_operator("cpu", Limits(max_batch=3))
    service.dispatcher.tick()
    assert third.submitted is not None


async def test_a_cap_on_new_tokens_shortens_new_requests_on_top_of_resumed_ones(service: Service) -> None:
    service.limits.set_operator("cpu", Limits(max_new_tokens=3))
    fresh = service.send("fresh", max_tokens=8, context_limited=True)
    resumed = service.send("resumed", max_tokens=8, emitted=[5, 6], resumed=2)
    assert (fresh.max_tokens, fresh.context_limited) == (3, False)
    assert resumed.max_tokens == 5


async def test_draining_refuses_new_requests_and_waits_for_the_last(service: Service) -> None:
    record = service.send("running")
    service.dispatcher.draining = True
    with pytest.raises(Draining):
        service.send("late")
    assert not await service.dispatcher.wait_idle(0.01)
    service.dispatcher.withdraw(record)
    assert await service.dispatcher.wait_idle(0)


async def test_an_abort_reaches_queued_and_running_streams(service: Service) -> None:
    running = (await service.fill())[0]
    waiting = service.send("waiting")
    for record in (running, waiting):
        service.dispatcher.abort(record, Aborted("ended by an operator"))
        assert isinstance(record.error, Aborted)
    assert (await service.engine.command()).cancel.stream == running.number
    assert len(service.dispatcher.queue) == 0
