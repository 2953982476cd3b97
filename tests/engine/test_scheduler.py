"""What every step of the scheduler holds, whatever arrives, leaves or is limited."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate.limits import Limits
from coldplate_engine.block_pool import BlockPool
from coldplate_engine.messages import EngineError, StopCause
from coldplate_engine.scheduler import Scheduler, StepPlan
from coldplate_engine.stream import Stream
from support.engine_loop import submission

BLOCK = 4


def make(num_blocks: int = 32, seqs: int = 4, batched: int = 16, context: int = 64) -> Scheduler:
    return Scheduler(BlockPool(num_blocks, BLOCK), seqs, batched, context)


def add(scheduler: Scheduler, stream: int, prompt: int = 4, max_tokens: int = 4, priority: int = 2) -> Stream:
    made = Stream.start(submission(stream, range(prompt), max_tokens, priority=priority), scheduler.max_model_len, 0.0)
    assert scheduler.add(made) is None
    return made


def finish_step(scheduler: Scheduler, plan: StepPlan) -> list[int]:
    """Accept token 1 for every row of logits; returns the streams that ended."""
    scheduler.commit(plan)
    ended = []
    for piece, stream in zip(plan.batch.slices, plan.streams, strict=True):
        if piece.logit_tokens and stream.accept(1, scheduler.max_model_len)[1] is not None:
            scheduler.remove(stream.id)
            ended.append(stream.id)
    return ended


ARRIVALS = st.tuples(st.just("add"), st.integers(1, 30), st.integers(1, 20), st.integers(1, 3))
CANCELS = st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0), st.just(0))
LIMITS = st.tuples(st.just("limits"), st.integers(1, 6), st.integers(0, 12), st.just(0))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.one_of(ARRIVALS, CANCELS, LIMITS), max_size=3), max_size=25))
def test_invariants_under_random_arrivals_cancels_and_limits(rounds: list[list[tuple[str, int, int, int]]]) -> None:
    scheduler = make()
    made: dict[int, Stream] = {}
    for actions in rounds:
        for kind, a, b, c in actions:
            if kind == "add":
                made[len(made)] = add(scheduler, len(made), a, b, c)
            elif kind == "cancel":
                scheduler.remove(a)
            else:
                scheduler.limits = Limits(max_batch=a, max_prefill_tokens=b)
        check_step(scheduler)
    scheduler.limits = Limits()
    for _ in range(2000):
        if not scheduler.live:
            break
        check_step(scheduler)
    assert scheduler.live == 0, "everything that arrived has an end"
    assert scheduler.pool.used == 0
    assert scheduler.pool.is_whole()


def check_step(scheduler: Scheduler) -> None:
    running_before = set(scheduler.running)
    decoding = {stream.id for stream in scheduler.running.values() if stream.decoding}
    waiting_before = [stream.id for stream in scheduler.waiting]
    plan = scheduler.schedule()
    scheduled = [stream.id for stream in plan.streams]
    assert plan.batch.token_count == plan.prefill_tokens + plan.decode_tokens <= scheduler.max_num_batched_tokens
    assert set(scheduled[: plan.decode_tokens]) == decoding, "no decode is left out, and decodes come first"
    assert len(set(scheduled)) == len(scheduled)
    limit = scheduler.limits.max_prefill_tokens
    assert limit is None or plan.prefill_tokens <= limit
    assert plan.admitted == waiting_before[: len(plan.admitted)], "first in line, first admitted"
    allowed = min(scheduler.max_num_seqs, scheduler.limits.max_batch or scheduler.max_num_seqs)
    assert not plan.admitted or len(scheduler.running) <= allowed
    assert running_before <= set(scheduler.running), "nothing that runs is put out"
    held = [block for stream in scheduler.running.values() for block in stream.block_table]
    assert len(held) == len(set(held)) == scheduler.pool.used
    assert scheduler.pool.is_whole()
    for piece in plan.batch.slices:
        assert piece.start + len(piece.token_ids) <= len(piece.block_table) * BLOCK
    finish_step(scheduler, plan)


def test_waiting_streams_go_by_priority_then_arrival() -> None:
    scheduler = make(seqs=1)
    for stream, priority in enumerate((1, 2, 3, 3, 2, 1)):
        add(scheduler, stream, 1, 1, priority)
    order = []
    while scheduler.live:
        plan = scheduler.schedule()
        order += plan.admitted
        finish_step(scheduler, plan)
    assert order == [2, 3, 1, 4, 0, 5]


def test_a_long_prompt_goes_in_by_chunks_beside_the_decodes() -> None:
    scheduler = make(batched=8)
    add(scheduler, 1, prompt=2, max_tokens=10)
    finish_step(scheduler, scheduler.schedule())
    add(scheduler, 2, prompt=20, max_tokens=2)
    sizes = []
    for _ in range(3):
        plan = scheduler.schedule()
        sizes.append([(piece.stream, len(piece.token_ids), piece.logit_tokens) for piece in plan.batch.slices])
        finish_step(scheduler, plan)
    assert sizes == [[(1, 1, 1), (2, 7, 0)], [(1, 1, 1), (2, 7, 0)], [(1, 1, 1), (2, 6, 1)]]


def test_prefill_limit_zero_pauses_prefill_and_not_decodes() -> None:
    scheduler = make()
    add(scheduler, 1)
    finish_step(scheduler, scheduler.schedule())
    add(scheduler, 2)
    scheduler.limits = Limits(max_prefill_tokens=0)
    plan = scheduler.schedule()
    assert [piece.stream for piece in plan.batch.slices] == [1]
    scheduler.limits = Limits(max_prefill_tokens=3)
    finish_step(scheduler, plan)
    assert scheduler.schedule().prefill_tokens == 3


def test_max_batch_stops_admission_and_never_preempts() -> None:
    scheduler = make()
    for stream in range(3):
        add(scheduler, stream, max_tokens=9)
    finish_step(scheduler, scheduler.schedule())
    add(scheduler, 3)
    scheduler.limits = Limits(max_batch=1)
    plan = scheduler.schedule()
    assert [piece.stream for piece in plan.batch.slices] == [0, 1, 2]
    assert scheduler.credit(4, draining=False).free_slots == 0


def test_a_request_that_can_never_fit_is_refused_and_blocks_nobody() -> None:
    scheduler = make(num_blocks=4)
    too_large = Stream.start(submission(1, range(14), 3), scheduler.max_model_len, 0.0)
    ended = scheduler.add(too_large)
    assert ended is not None
    assert (ended.cause, ended.error) == (StopCause.ERROR, EngineError.UNSATISFIABLE)
    assert "17 tokens of a KV cache of 16" in ended.error_text
    add(scheduler, 2)
    assert scheduler.schedule().admitted == [2]


def test_the_reservation_is_cut_at_the_context() -> None:
    scheduler = make(num_blocks=16, context=64)
    add(scheduler, 1, prompt=60, max_tokens=1000)
    assert scheduler.schedule().admitted == [1]
    assert scheduler.pool.used == 16


def test_credit_counts_running_waiting_and_promised_blocks() -> None:
    scheduler = make(num_blocks=10, seqs=4)
    assert scheduler.credit(0, draining=False) == replace(scheduler.credit(0, False), free_slots=4, free_kv_tokens=40)
    add(scheduler, 1, 6, 6)  # three blocks
    waiting = scheduler.credit(1, draining=False)
    assert (waiting.submits_seen, waiting.free_slots, waiting.free_kv_tokens) == (1, 3, 28)
    scheduler.schedule()
    assert scheduler.credit(1, draining=False) == waiting
    assert scheduler.credit(1, draining=True).free_slots == 0
    scheduler.remove(1)
    assert scheduler.credit(1, draining=False).free_kv_tokens == 40


def test_a_resumed_stream_prefills_what_it_had_emitted() -> None:
    scheduler = make()
    stream = Stream.start(submission(1, (5, 6), 4, emitted_ids=(7, 8, 9)), 64, 0.0)
    assert scheduler.add(stream) is None
    plan = scheduler.schedule()
    assert plan.batch.slices[0].token_ids == [5, 6, 7, 8, 9]
    assert stream.generated == 3
    assert finish_step(scheduler, plan) == [1]  # the fourth of four


def test_a_resumed_stream_that_is_complete_ends_at_once() -> None:
    ended = make().add(Stream.start(submission(1, (5,), 2, emitted_ids=(7, 8)), 64, 0.0))
    assert ended is not None
    assert ended.cause is StopCause.MAX_TOKENS


def test_a_batch_smaller_than_the_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="below max_num_seqs"):
        make(seqs=8, batched=4)


def ids_of(streams: Iterable[Stream]) -> list[int]:
    return [stream.id for stream in streams]


def test_expired_streams_are_named_in_any_state() -> None:
    scheduler = make(seqs=1)
    for number, left in enumerate((1.0, 2.0, None)):
        scheduler.add(Stream.start(submission(number, deadline_s=left), 64, now=10.0))
    scheduler.schedule()
    assert ids_of(scheduler.running.values()) == [0]
    assert scheduler.expired(11.5) == [0]
    assert scheduler.expired(12.0) == [0, 1]
