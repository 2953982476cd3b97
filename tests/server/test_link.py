"""The control stream to a worker: what goes out, what comes in, and what its loss does to streams."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from coldplate.clock import MonotonicClock
from coldplate.internal.v1 import engine_pb2
from coldplate.limits import Limits
from coldplate_server.errors import Aborted, DeadlineExceeded, EngineLost, NonFiniteLogits, StreamCut
from coldplate_server.journal import EngineEnd, StreamRecord
from coldplate_server.request import FallbackPolicy, Priority, SamplingParams
from coldplate_server.settings import ServedModel, WorkerSpec
from coldplate_server.workers.link import WorkerLink
from support.fake_engine import FakeEngine, hello
from support.processes import until


class Events:
    """Counts what a link tells."""

    def __init__(self) -> None:
        self.tokens = 0
        self._news = asyncio.Event()

    def worker_changed(self, link: WorkerLink) -> None:
        self._news.set()

    def step_taken(self, link: WorkerLink, tokens: int) -> None:
        self.tokens += tokens
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self._news.clear()
                await self._news.wait()


def record(number: int, prompt: int = 4, max_tokens: int = 8) -> StreamRecord:
    return StreamRecord(
        number=number,
        request_id=f"r{number}",
        model="m",
        prompt_ids=list(range(prompt)),
        sampling=SamplingParams(seed=7),
        max_tokens=max_tokens,
        context_limited=False,
        stop_token_ids=frozenset({3, 1}),
        priority=Priority.HIGH,
        fallback=FallbackPolicy.SAME_MODEL,
        arrived=0.0,
    )


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(tmp_path / "e.sock") as fake:
        yield fake


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def link(engine: FakeEngine, events: Events) -> AsyncIterator[WorkerLink]:
    spec = WorkerSpec("worker-0", ServedModel("m", Path("m")), address=engine.address)
    made = WorkerLink(spec, engine.address, MonotonicClock(), events)
    task = asyncio.create_task(made.run())
    await events.until(lambda: made.ready)
    yield made
    task.cancel()
    await asyncio.wait([task])


async def test_a_submit_carries_all_that_is_needed_to_generate(link: WorkerLink, engine: FakeEngine) -> None:
    stream = record(5)
    stream.emitted, stream.resumed = [9, 8], 2
    link.submit(stream)
    submit = (await engine.command()).submit
    assert submit.stream == 5
    assert list(submit.prompt_token_ids) == [0, 1, 2, 3]
    assert list(submit.emitted_token_ids) == [9, 8]
    assert (submit.sampling.seed, submit.max_tokens, submit.priority) == (7, 8, 3)
    assert list(submit.stop_token_ids) == [1, 3]
    assert (stream.worker, stream.device, stream.attempts) == ("worker-0", "cpu", 1)


async def test_tokens_are_journaled_and_an_end_is_kept(link: WorkerLink, engine: FakeEngine, events: Events) -> None:
    stream = record(1)
    link.submit(stream)
    engine.step({1: 42})
    end = engine_pb2.Finished(stream=1, cause=engine_pb2.STOP_CAUSE_STOP_TOKEN, stop_token_id=3)
    engine.step({1: 43}, finished=(end,), credit=(1, 4, 256))
    await events.until(lambda: stream.over)
    assert stream.emitted == [42, 43]
    assert stream.end == EngineEnd("stop_token", 3)
    assert events.tokens == 2
    assert link.running == 0


async def test_a_cancelled_stream_takes_no_more_tokens(link: WorkerLink, engine: FakeEngine, events: Events) -> None:
    gone, kept = record(1), record(2)
    link.submit(gone)
    link.submit(kept)
    link.cancel(gone)
    assert [(await engine.command()).WhichOneof("command") for _ in range(3)] == ["submit", "submit", "cancel"]
    engine.step({1: 42, 2: 43})
    await events.until(lambda: bool(kept.emitted))
    assert gone.emitted == []
    assert link.running == 1


async def test_losing_the_worker_ends_its_streams_with_what_was_delivered(
    link: WorkerLink, engine: FakeEngine, events: Events
) -> None:
    begun, fresh = record(1), record(2)
    link.submit(begun)
    link.submit(fresh)
    engine.step({1: 42})
    await events.until(lambda: bool(begun.emitted))
    engine.hang_up()
    await events.until(lambda: begun.over and fresh.over)
    assert isinstance(begun.error, StreamCut)
    assert begun.error.facts == {"delivered_tokens": "1"}
    assert isinstance(fresh.error, EngineLost)
    assert fresh.error.retry_after_s
    await events.until(lambda: link.ready)
    assert link.running == 0


async def test_non_finite_logits_end_only_the_stream_that_has_them(
    link: WorkerLink, engine: FakeEngine, events: Events
) -> None:
    bad, good = record(1), record(2)
    link.submit(bad)
    link.submit(good)
    failed = engine_pb2.Finished(
        stream=1,
        cause=engine_pb2.STOP_CAUSE_ERROR,
        error=engine_pb2.ENGINE_ERROR_NON_FINITE_LOGITS,
        error_text="internal detail",
    )
    engine.step({2: 5}, finished=(failed,))
    await events.until(lambda: bad.over)
    assert isinstance(bad.error, NonFiniteLogits)
    assert "internal detail" not in bad.error.message
    assert not good.over


async def test_limits_are_sent_when_they_change_and_again_to_a_worker_that_came_back(
    link: WorkerLink, engine: FakeEngine, events: Events
) -> None:
    link.set_limits(Limits(duty=0.5))
    link.set_limits(Limits(duty=0.5))
    link.set_limits(Limits(max_batch=2))
    first, second = (await engine.command()).set_limits, (await engine.command()).set_limits
    assert (first.limits.duty, second.limits.max_batch) == (0.5, 2)
    assert second.seq > first.seq
    engine.hang_up()
    await events.until(lambda: not link.ready)
    again = (await engine.command()).set_limits
    assert again.limits.max_batch == 2
    assert engine.commands.empty()


async def test_credit_follows_the_workers_word_less_what_is_on_its_way(
    link: WorkerLink, engine: FakeEngine, events: Events
) -> None:
    assert link.credit.covers(256)
    link.submit(record(1, prompt=20, max_tokens=20))
    assert link.credit.free_kv_tokens == 256 - 32, "the prompt and one token, in whole blocks"
    engine.step(credit=(1, 3, 160))
    await events.until(lambda: link.credit.free_kv_tokens == 160)
    assert link.credit.free_slots == 3


HELLO = engine_pb2.Hello(devices=["cpu"], vocabulary_size=300, block_size=16, kv_cache_tokens=256, max_num_seqs=4)
FOREIGN = {
    "names no device": engine_pb2.RunResponse(hello=engine_pb2.Hello()),
    "unknown device": engine_pb2.RunResponse(hello=engine_pb2.Hello(devices=["gpu:0"])),
    "max_model_len is 0": engine_pb2.RunResponse(hello=HELLO),
    "one stream for each": engine_pb2.RunResponse(step=engine_pb2.Step(streams=[1, 2], token_ids=[5])),
    "outside its vocabulary": engine_pb2.RunResponse(step=engine_pb2.Step(streams=[1], token_ids=[-1])),
}


@pytest.mark.parametrize("why", list(FOREIGN))
async def test_a_worker_that_breaks_the_protocol_loses_its_connection_and_may_come_again(
    link: WorkerLink, engine: FakeEngine, events: Events, why: str
) -> None:
    stream = record(1)
    link.submit(stream)
    engine.say(FOREIGN[why])
    await events.until(lambda: stream.over)
    assert isinstance(stream.error, EngineLost)
    await events.until(lambda: link.ready)
    assert engine.connections == 2


async def test_a_worker_that_never_makes_sense_is_asked_ever_more_seldom_and_is_told_of_once(
    tmp_path: Path, events: Events
) -> None:
    async with FakeEngine(tmp_path / "e.sock") as engine:
        engine.hello = engine_pb2.Hello(devices=["gpu:0"])
        spec = WorkerSpec("worker-0", ServedModel("m", Path("m")), address=engine.address)
        link = WorkerLink(spec, engine.address, MonotonicClock(), events)
        with capture_logs() as lines:
            task = asyncio.create_task(link.run())
            await events.until(lambda: engine.connections >= 4)
        assert [line["event"] for line in lines] == ["worker connection lost"]
        assert link.trouble is not None
        assert "gpu:0" in link.trouble
        engine.hello = hello()
        await events.until(lambda: link.ready)
        assert link.trouble is None
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.slow
async def test_a_worker_that_was_away_for_long_is_found_soon(tmp_path: Path, events: Events) -> None:
    """Sooner than it would end itself for want of a server, however long the connection has been tried in vain."""
    spec = WorkerSpec("worker-0", ServedModel("m", Path("m")), address=f"unix:{tmp_path / 'e.sock'}")
    link = WorkerLink(spec, spec.address or "", MonotonicClock(), events)
    task = asyncio.create_task(link.run())
    await asyncio.sleep(11)
    async with FakeEngine(tmp_path / "e.sock"):
        async with asyncio.timeout(2.5):
            await events.until(lambda: link.ready)
        task.cancel()
        await asyncio.wait([task])


async def test_what_the_worker_ends_by_the_deadline_is_no_abort(
    link: WorkerLink, engine: FakeEngine, events: Events
) -> None:
    late, ended = record(1), record(2)
    late.deadline = 0.0
    link.submit(late)
    link.submit(ended)
    cancelled = [engine_pb2.Finished(stream=i, cause=engine_pb2.STOP_CAUSE_CANCELLED) for i in (1, 2)]
    engine.step(finished=tuple(cancelled))
    await events.until(lambda: late.over and ended.over)
    assert isinstance(late.error, DeadlineExceeded)
    assert isinstance(ended.error, Aborted)


async def test_a_worker_of_which_nothing_is_heard_is_told_of(
    tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coldplate_server.workers.link._SILENT_AFTER_S", 0.05)
    spec = WorkerSpec("worker-0", ServedModel("m", Path("m")), address=f"unix:{tmp_path / 'e.sock'}")
    link = WorkerLink(spec, spec.address or "", MonotonicClock(), events)
    with capture_logs() as lines:
        task = asyncio.create_task(link.run())
        await asyncio.to_thread(until, "the trouble", lambda: link.trouble)
        task.cancel()
        await asyncio.wait([task])
    assert [(line["event"], line["address"]) for line in lines] == [("worker is silent", spec.address)]
