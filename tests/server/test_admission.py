"""Admission as a whole, with synthetic engines and callers in virtual time: what it promises, and what always holds."""

import random
from dataclasses import replace
from typing import Any

import pytest
from admission_cases import CASES, POLICY, SETUPS, Setup
from admission_world import Ask, Engine, Load, World
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate.limits import Limits
from coldplate_server.admission.policy import AdmissionPolicy
from coldplate_server.errors import Aborted, Overloaded, QueueFull, QueueTimeout, RequestError, Shed
from coldplate_server.journal import StreamRecord
from coldplate_server.request import Priority

LOW, NORMAL, HIGH = Priority.LOW, Priority.NORMAL, Priority.HIGH
USUAL = SETUPS["16 slots"]
SMALL = Engine(slots=4, kv_tokens=2048, step_s=0.05, stream_s=0.0)


def ask(world: World, tenant: str = "t", priority: Priority = NORMAL, tokens: int = 20, prompt: int = 8) -> Ask:
    made = Ask(world.clock.now(), tenant, priority, prompt, tokens, max_tokens=tokens)
    world.ask(made)
    return made


def error(made: Ask) -> RequestError | None:
    return made.refusals[-1][2] if made.refusals else None


@pytest.mark.parametrize("case", CASES)
def test_it_keeps_what_it_promises(case: str) -> None:
    missed = [figure for figure in CASES[case](USUAL, 1) if not figure.met]
    assert not missed, missed


def test_the_same_seed_gives_the_same_figures() -> None:
    short = Setup(Engine(slots=2, step_s=0.05), POLICY)
    assert CASES["throttled"](short, 7) == CASES["throttled"](short, 7)


def test_who_would_wait_too_long_is_refused_at_once_with_a_hint_that_holds() -> None:
    world = World(SMALL, replace(POLICY, wait_target_s={HIGH: 1.0, NORMAL: 2.0, LOW: 4.0}))
    world.run(Load({("t", NORMAL): 1.0}, prompt=8, answer=20, max_tokens=20).arrivals({(0, 20): 12.0}, 3), 20)
    refused = [made for made in world.asks if made.refusals]
    told = [answer for made in refused if isinstance(answer := error(made), Overloaded)]
    assert len(told) > 10
    for answer in told:
        assert answer.retry_after_s is not None
        assert 0.5 <= answer.retry_after_s <= 30
        assert f"try again in {answer.retry_after_s:.1f} s" in answer.message
    latest = told[-1].retry_after_s or 0.0
    world.run(iter(()), 20 + latest)
    assert not ask(world).refusals, "who comes back when told, and when nobody else does, is let in"


def test_an_idle_server_lets_anyone_in_even_behind_an_overload() -> None:
    world = World(SMALL, POLICY)
    load = Load({("t", NORMAL): 1.0}, prompt=8, answer=20, max_tokens=20)
    world.run(load.arrivals({(0, 60): 30.0}, 1), 60)
    assert any(made.refusals for made in world.asks)
    world.run(iter(()), 120)
    burst = [ask(world) for _ in range(12)]
    world.run(iter(()), 130)
    assert all(made.done_s is not None for made in burst)


def test_a_full_queue_costs_the_lowest_class_and_the_caller_who_has_had_most() -> None:
    world = World(SMALL, AdmissionPolicy(max_waiting=4))
    for _ in range(4):
        ask(world, "busy", LOW)
    low = [ask(world, "greedy", LOW), ask(world, "greedy", LOW), ask(world, "modest", LOW)]
    normal = ask(world, "greedy", NORMAL)
    assert isinstance(error(ask(world, "greedy", LOW)), QueueFull)
    high = ask(world, "greedy", HIGH)
    assert isinstance(error(low[1]), Shed)
    assert "higher class" in str(error(low[1]))
    assert not any(made.refusals for made in (low[0], low[2], normal, high))


def test_a_request_that_will_not_start_in_its_own_time_is_told_so_at_once() -> None:
    world = World(SMALL, replace(POLICY, wait_target_s=dict.fromkeys(Priority, 1000.0)))
    for _ in range(60):
        ask(world)
    world.run(iter(()), 8)
    hurried = world.dispatcher.journal.next_number()
    record = _record(world, hurried)
    with pytest.raises(QueueTimeout) as refused:
        world.dispatcher.enqueue([record], 0.5)
    assert refused.value.retry_after_s


def test_a_stream_that_waits_too_long_is_given_up_when_the_device_slows_down() -> None:
    world = World(SMALL, replace(POLICY, wait_target_s=dict.fromkeys(Priority, 4.0)))
    load = Load({("t", NORMAL): 1.0}, prompt=8, answer=20, max_tokens=20)
    world.run(load.arrivals({(0, 60): 3.6}, 1), 60, {30.0: 0.1})
    late = [answered - asked for made in world.asks for asked, answered, _ in made.refusals if answered > asked]
    assert late
    assert max(late) <= 8.5
    slot_s = 20 * SMALL.step_s / 0.1 / SMALL.slots
    waits = [wait for made in world.asks if (wait := made.wait_s) is not None]
    assert max(waits) <= 8.5 + SMALL.slots * slot_s, "the first in line is kept until a slot comes free"


def test_streams_of_a_request_that_has_begun_are_not_held_against_it() -> None:
    world = World(SMALL, replace(POLICY, wait_target_s=dict.fromkeys(Priority, 0.1)))
    for _ in range(40):
        ask(world)
        world.run(iter(()), world.clock.now() + 0.2)
    world.run(iter(()), world.clock.now() + 60)
    first = _record(world, world.dispatcher.journal.next_number(), "many")
    others = [_record(world, world.dispatcher.journal.next_number(), "many", first) for _ in range(11)]
    world.link.lengths |= {record.number: 20 for record in (first, *others)}
    world.dispatcher.enqueue([first, *others], 10.0)
    world.dispatcher.tick()
    assert sum(record.submitted is not None for record in (first, *others)) == 4
    assert not any(record.over for record in (first, *others))


def test_small_requests_of_a_low_class_do_not_take_what_a_large_one_of_a_high_class_waits_for() -> None:
    world = World(replace(SMALL, slots=8, kv_tokens=1024), POLICY)
    for _ in range(4):
        ask(world, "t", LOW, tokens=20, prompt=200)
    large = ask(world, "t", HIGH, tokens=20, prompt=600)
    for _ in range(100):
        ask(world, "t", LOW, tokens=20, prompt=60)
        world.run(iter(()), world.clock.now() + 0.05)
    assert (wait := large.wait_s) is not None
    assert wait < 2


def _record(world: World, number: int, request_id: str = "r", sibling_of: StreamRecord | None = None) -> StreamRecord:
    model = ask(World(SMALL, POLICY)).record
    assert model is not None
    changes: dict[str, Any] = {"number": number, "request_id": request_id, "arrived": world.clock.now()}
    return replace(model, **changes, sibling_of=sibling_of, submitted=None, worker=None, device=None, wake=None)


class Checked(World):
    """Holds the queue to its rules at every step of the way."""

    def check(self) -> None:
        queue, fleet = self.dispatcher.queue, self.dispatcher.fleet
        kept: set[str] = set()
        for lane in queue.lanes:
            assert lane.waiting_tokens == sum(lane.get(record).tokens for record in lane)
            assert len(lane) == len(list(lane))
            assert lane.running_tokens >= 0
            head = lane.head(fleet.could_take)
            assert lane.blocked == (head is not None)
            if head is not None:
                assert fleet.choose(head, kept) is None, "there is room and somebody waits for it"
                kept |= fleet.takers(head)

    def check_empty(self) -> None:
        assert len(self.dispatcher.queue) == len(self.dispatcher.journal) == self.link.running == 0
        self.dispatcher.tick()
        for lane in self.dispatcher.queue.lanes:
            assert lane.waiting_tokens == lane.running_tokens == lane.share.waiting == 0


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"),
            st.sampled_from("abc"),
            st.sampled_from(list(Priority)),
            st.integers(1, 60),
            st.integers(1, 600),
        ),
        st.tuples(st.just("run"), st.floats(0.01, 3.0)),
        st.tuples(st.just("abort"), st.integers(0, 100)),
        st.tuples(st.just("limit"), st.sampled_from([None, 1, 2, 3])),
        st.tuples(st.just("pause"), st.booleans()),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_nothing_is_lost_and_no_slot_idles_whatever_happens(actions: list[tuple[Any, ...]]) -> None:
    policy = AdmissionPolicy(max_waiting=8, wait_target_s={HIGH: 0.5, NORMAL: 1.0, LOW: 2.0}, probe_tokens=50)
    world = Checked(SMALL, policy)
    for action in actions:
        match action:
            case ("ask", tenant, priority, tokens, prompt):
                ask(world, tenant, priority, tokens, prompt)
            case ("run", seconds):
                world.run(iter(()), world.clock.now() + seconds)
            case ("abort", index) if len(world.dispatcher.journal):
                records = list(world.dispatcher.journal)
                world.dispatcher.abort(records[index % len(records)], Aborted("by hand"))
                world.dispatcher.pump()
            case ("limit", cap):
                world.limits.set_operator("cpu", Limits(max_batch=cap))
                world.dispatcher.tick()
            case ("pause", paused):
                world.limits.set_operator("cpu", Limits(max_prefill_tokens=0 if paused else None))
                world.dispatcher.tick()
        world.check()
    world.limits.set_operator("", Limits())
    world.run(iter(()), world.clock.now() + 120)
    world.check_empty()
    for made in world.asks:
        assert (made.done_s is not None) + bool(made.refusals) == 1, "one end each"


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.integers(2, 6))
def test_no_tenant_of_a_class_is_left_behind(seed: int, tenants: int) -> None:
    """All wait all the time, for prompts and answers of any length: nobody gets further ahead than VTC's bound."""
    rng = random.Random(seed)
    policy = replace(POLICY, max_waiting=10_000, wait_target_s=dict.fromkeys(Priority, 1e9))
    world = World(replace(SMALL, kv_tokens=100_000), policy)
    bound = 2 * max(POLICY.prompt_weight * 100, POLICY.answer_weight * 40 * SMALL.slots)

    def fill(world: World) -> None:
        waiting = dict.fromkeys(range(tenants), 0)
        for record in world.dispatcher.queue:
            waiting[int(record.tenant)] += 1
        for tenant, count in waiting.items():
            for _ in range(3 - count):
                ask(world, str(tenant), NORMAL, rng.randint(1, 40), rng.randint(1, 100))

    world.after_step = fill
    fill(world)
    for _ in range(10):
        world.run(iter(()), world.clock.now() + 3)
        had = dict.fromkeys(map(str, range(tenants)), 0.0)
        for made in world.asks:
            record = made.record
            if record is not None and record.submitted is not None:
                had[made.tenant] += POLICY.prompt_weight * len(record.prompt_ids)
                had[made.tenant] += POLICY.answer_weight * record.delivered
        assert max(had.values()) - min(had.values()) <= bound


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_the_next_of_a_class_is_always_of_the_tenant_who_has_had_least(seed: int) -> None:
    rng = random.Random(seed)
    world = World(SMALL, replace(POLICY, wait_target_s=dict.fromkeys(Priority, 1e9), max_waiting=1000))
    submit = world.link.submit

    def checked(record: StreamRecord) -> None:
        lane = world.dispatcher.queue.lane(record)
        before = lane.share.counter(record.tenant) - POLICY.prompt_cost(record)
        others = [lane.share.counter(other.tenant) for other in lane]
        assert all(before <= counter + 1e-6 for counter in others)
        submit(record)

    world.link.submit = checked  # type: ignore[method-assign]
    for _ in range(60):
        ask(world, rng.choice("abcd"), NORMAL, rng.randint(1, 40), rng.randint(1, 50))
        world.run(iter(()), world.clock.now() + rng.random())
    world.run(iter(()), world.clock.now() + 60)
    assert all(made.done_s is not None for made in world.asks)
