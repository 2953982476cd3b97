"""Synthetic engines and callers around the server's own dispatcher, on a clock that only the simulation moves.

Everything between a request's arrival and its hand-over to an engine is the server's code: dispatcher, queue, door,
fleet, limits, credit. The engine makes steps of continuous batching; callers come at random, deterministic by seed.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from coldplate.clock import ManualClock
from coldplate.limits import Limits
from coldplate_server.admission.policy import AdmissionPolicy
from coldplate_server.dispatcher import Dispatcher
from coldplate_server.errors import RequestError
from coldplate_server.journal import EngineEnd, Journal, StreamRecord
from coldplate_server.limit_book import LimitBook
from coldplate_server.request import FallbackPolicy, Priority, SamplingParams
from coldplate_server.request_queue import RequestQueue
from coldplate_server.settings import ServedModel, WorkerSpec
from coldplate_server.workers.credit import Credit
from coldplate_server.workers.fleet import Fleet, Worker

TICK_S = 0.25
MAX_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Engine:
    """A step takes ``step_s``, ``stream_s`` more for each stream, and the time of the prompts begun in it."""

    slots: int = 16
    kv_tokens: int = 65_536
    step_s: float = 0.020
    stream_s: float = 0.001
    prefill_tokens_per_s: float = 4000.0


@dataclass(slots=True)
class Ask:
    """One request of a caller, and what became of it. Times in seconds of the virtual clock."""

    at_s: float
    tenant: str
    priority: Priority
    prompt: int
    answer: int
    max_tokens: int
    attempts: int = 0
    first_s: float = 0.0
    record: StreamRecord | None = None
    refusals: list[tuple[float, float, RequestError]] = field(default_factory=list)  # asked, answered, error
    done_s: float | None = None

    @property
    def wait_s(self) -> float | None:
        """In the queue, of the attempt that was let through."""
        record = self.record
        return None if record is None or record.submitted is None else record.submitted - record.arrived


class _Link:
    """As much of a worker's link as fleet and dispatcher use; ``step`` is what the engine does."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.speed = 1.0
        self.credit = Credit(16, engine.slots, engine.kv_tokens)
        self.devices = ["cpu"]
        self.features: frozenset[str] = frozenset()
        self.hello = SimpleNamespace(max_model_len=8192, kv_cache_tokens=engine.kv_tokens)
        self.steps = SimpleNamespace(prefill_tokens_per_s=engine.prefill_tokens_per_s)
        self.ready, self.loading = True, None
        self.max_streams = engine.slots
        self.live: dict[int, StreamRecord] = {}
        self.lengths: dict[int, int] = {}  # of the answers, by stream
        self.tokens = 0
        self.touched = False  # since the last step: it has something to say
        self._clock = clock
        self._submits = 0
        self._batch: list[StreamRecord] = []

    @property
    def running(self) -> int:
        return len(self.live)

    def submit(self, record: StreamRecord) -> None:
        self.credit.spend(record.admission_tokens)
        self._submits += 1
        self.touched = True
        self.live[record.number] = record
        record.worker, record.device, record.submitted = "engine", "cpu", self._clock.now()

    def cancel(self, record: StreamRecord) -> None:
        self.live.pop(record.number, None)
        self.touched = True

    def set_limits(self, limits: Limits) -> None:
        self.speed = limits.duty or 1.0

    def begin(self) -> float:
        """Begin a step with what is there; returns how long it takes."""
        self._batch, self.touched = list(self.live.values()), False
        prompts = sum(len(record.prompt_ids) for record in self._batch if not record.admitted)
        engine = self.engine
        took = engine.step_s + engine.stream_s * len(self._batch) + prompts / engine.prefill_tokens_per_s
        return took / self.speed

    def finish(self) -> None:
        """End the step: a token for each stream that was in it and is still wanted."""
        now = self._clock.now()
        for record in self._batch:
            if record.number not in self.live:
                continue
            record.admitted = True
            record.append(0, now)
            self.tokens += 1
            if record.delivered >= min(self.lengths.get(record.number, 1), record.max_tokens):
                del self.live[record.number]
                record.finish(EngineEnd("stop_token"))
        held = sum(self.credit.needed(record.admission_tokens) for record in self.live.values())
        self.credit.update(self._submits, self.engine.slots - len(self.live), self.engine.kv_tokens - held)


class World:
    """A server with one engine. ``run`` plays a list of requests; a caller that is refused may ask again."""

    def __init__(
        self, engine: Engine, policy: AdmissionPolicy, *, attempts: int = 1, max_wait_s: float = MAX_WAIT_S
    ) -> None:
        """``attempts``: how often a caller asks in all, each time after the delay it was told."""
        self._max_wait_s = max_wait_s
        self.clock = ManualClock()
        self.limits = LimitBook(self.clock, {"cpu": Limits(duty=1.0)}, frozenset())
        self.dispatcher = Dispatcher(Journal(), RequestQueue(policy), self.clock)
        self.link = _Link(engine, self.clock)
        spec = WorkerSpec("engine", ServedModel("m", Path("m")), address="unix:none")
        fleet = Fleet([], lambda spec, listen, workers: [], Path(), self.limits, self.clock, cast("Any", None))
        fleet.workers = [Worker(spec, cast("Any", self.link), None)]
        self.dispatcher.fleet = fleet
        self.asks: list[Ask] = []
        self.after_step: Callable[[World], None] | None = None
        self._attempts = attempts
        self._waiting: dict[int, Ask] = {}
        self._due: list[tuple[float, int, Ask]] = []
        self._step_ends_s: float | None = None
        self._tick_s = 0.0

    def ask(self, ask: Ask) -> None:
        """Send a request now."""
        now = self.clock.now()
        if not ask.attempts:
            ask.first_s = now
            self.asks.append(ask)
        ask.attempts += 1
        number = self.dispatcher.journal.next_number()
        record = StreamRecord(
            number=number,
            request_id=str(number),
            model="m",
            prompt_ids=[0] * ask.prompt,
            sampling=SamplingParams(seed=0),
            max_tokens=ask.max_tokens,
            context_limited=False,
            stop_token_ids=frozenset(),
            priority=ask.priority,
            fallback=FallbackPolicy.SAME_MODEL,
            arrived=now,
            tenant=ask.tenant,
        )
        ask.record = record
        self.link.lengths[number] = ask.answer
        record.wake = lambda: self._woken(ask)
        self._waiting[number] = ask
        try:
            self.dispatcher.enqueue([record], self._max_wait_s)
        except RequestError as error:
            if number in self._waiting:
                self._refused(ask, error)

    def run(self, asks: Iterator[Ask], until_s: float, changes: Mapping[float, float] | None = None) -> None:
        """Play until ``until_s``. ``changes`` sets the engine's speed at some times."""
        coming = next(asks, None)
        speeds = sorted((changes or {}).items())
        while True:
            times = [self._tick_s, until_s]
            times += [coming.at_s] if coming else []
            times += [self._due[0][0]] if self._due else []
            times += [self._step_ends_s] if self._step_ends_s is not None else []
            times += [speeds[0][0]] if speeds else []
            now = min(times)
            self.clock.advance(max(0.0, now - self.clock.now()))
            if now >= until_s:
                return
            if speeds and now >= speeds[0][0]:
                self.limits.set_operator("cpu", Limits(duty=speeds.pop(0)[1]))
                self.dispatcher.tick()
            elif coming and now >= coming.at_s:
                self.ask(coming)
                coming = next(asks, None)
            elif self._due and now >= self._due[0][0]:
                self.ask(heapq.heappop(self._due)[2])
            elif self._step_ends_s is not None and now >= self._step_ends_s:
                self._end_step()
            else:
                self.dispatcher.tick()
                self._tick_s = now + TICK_S
            if self._step_ends_s is None and (self.link.live or self.link.touched):
                self._step_ends_s = self.clock.now() + self.link.begin()

    def _end_step(self) -> None:
        before = list(self.link.live.values())
        self.link.finish()
        self._step_ends_s = None
        for record in before:
            if record.over:
                if (ask := self._waiting.pop(record.number, None)) is not None:
                    ask.done_s = self.clock.now()
                self.dispatcher.withdraw(record)
        self.dispatcher.pump()
        if self.after_step is not None:
            self.after_step(self)

    def _woken(self, ask: Ask) -> None:
        if ask.record is not None and ask.record.error is not None and ask.record.number in self._waiting:
            self._refused(ask, ask.record.error)

    def _refused(self, ask: Ask, error: RequestError) -> None:
        assert ask.record is not None
        self._waiting.pop(ask.record.number, None)
        now = self.clock.now()
        ask.refusals.append((ask.record.arrived, now, error))
        if ask.attempts < self._attempts and error.retry_after_s is not None:
            heapq.heappush(self._due, (now + error.retry_after_s, ask.record.number, ask))


@dataclass(frozen=True, slots=True)
class Load:
    """Callers at random. ``shares`` of the requests are each tenant's and class's; lengths are lognormal."""

    shares: Mapping[tuple[str, Priority], float]
    prompt: float = 200.0
    answer: float = 150.0
    max_tokens: int = 512

    def arrivals(self, rates: Mapping[tuple[float, float], float], seed: int) -> Iterator[Ask]:
        """Poisson, ``rates`` per second within each span of (from, to) seconds."""
        rng = random.Random(seed)
        who, weights = list(self.shares), list(self.shares.values())
        for (start, end), rate in sorted(rates.items()):
            now = start + rng.expovariate(rate)
            while now < end:
                tenant, priority = rng.choices(who, weights)[0]
                prompt, answer = self._length(rng, self.prompt), self._length(rng, self.answer)
                yield Ask(now, tenant, priority, prompt, min(answer, self.max_tokens), self.max_tokens)
                now += rng.expovariate(rate)

    def _length(self, rng: random.Random, mean: float) -> int:
        return max(1, min(round(rng.lognormvariate(-0.125, 0.5) * mean), 4 * round(mean)))
