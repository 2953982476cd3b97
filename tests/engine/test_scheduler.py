"""What every step of the scheduler holds, whatever arrives, leaves or is limited."""

import random
import statistics
from dataclasses import replace

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate.limits import Limits
from coldplate_engine.messages import EngineError, StopCause
from coldplate_engine.preemption import MOST_PREEMPTIONS
from coldplate_engine.scheduler import Scheduler, fair_shares
from coldplate_engine.stream import Stream
from support.engine_loop import submission
from support.fake_runner import VOCABULARY, greedy_answer
from support.scheduler_rig import SchedulerRig

BLOCK = 4

ARRIVALS = st.tuples(st.just("add"), st.integers(1, 30), st.integers(1, 30), st.integers(1, 3))
CANCELS = st.tuples(st.just("cancel"), st.integers(0, 30), st.booleans(), st.just(0))
LIMITS = st.tuples(st.just("limits"), st.integers(1, 6), st.integers(0, 12), st.just(0))
DRAFTS = st.tuples(st.just("draft"), st.integers(0, 30), st.integers(1, 6), st.booleans())


@pytest.mark.parametrize("host_slots", [0, 6])
@settings(max_examples=150, deadline=None)
@given(
    rounds=st.lists(st.lists(st.one_of(ARRIVALS, CANCELS, LIMITS, DRAFTS), max_size=3), max_size=25),
    blocks=st.integers(15, 40),
    caching=st.booleans(),
)
def test_whatever_comes_everyone_gets_their_answer_and_no_block_is_lost(
    host_slots: int, rounds: list[list[tuple[str, int, int, int]]], blocks: int, caching: bool
) -> None:
    """Arrivals with shared prompts, cancels, failures, limits and guesses over a cache that is often too small."""
    rig = SchedulerRig(blocks, BLOCK, host_slots=host_slots, prefix_caching=caching)
    scheduler = rig.scheduler
    made: dict[int, Stream] = {}
    gone: set[int] = set()
    for actions in rounds:
        for kind, a, b, c in actions:
            if kind == "add":
                sibling = a % (len(made) + 1)
                made[len(made)] = rig.add(len(made), a, b, priority=c, sibling_of=sibling, cache_salt="x" * (a % 2))
            elif kind == "cancel" and a in made:
                gone.add(a)
                scheduler.remove(a, forget=bool(b))
            elif kind == "limits":
                scheduler.limits = Limits(max_batch=a, max_prefill_tokens=b)
            elif kind == "draft" and a in made and made[a].decoding and scheduler.has(a):
                right = greedy_answer(made[a].tokens, b)
                made[a].drafts = right if c else [*right[: b // 2], *[(t + 1) % VOCABULARY for t in right[b // 2 :]]]
        rig.step()
    scheduler.limits = Limits()
    rig.run()
    assert rig.pool.used == 0
    for number, stream in made.items():
        expected = greedy_answer(range(len(stream.submission.prompt_ids)), len(rig.answers[number]))
        assert rig.answers[number] == expected
        if number not in gone:
            assert stream.generated == stream.submission.max_tokens
        assert stream.preemptions <= MOST_PREEMPTIONS


@pytest.mark.parametrize("within_credit", [True, False])
def test_a_working_set_of_four_times_the_cache_keeps_every_promise(within_credit: bool) -> None:
    oversubscribe(400, within_credit)


@pytest.mark.slow
def test_ten_thousand_arrivals_at_four_times_the_cache_keep_every_promise() -> None:
    oversubscribe(10_000, within_credit=False)


def oversubscribe(arrivals: int, within_credit: bool) -> None:
    """Random prompts, many of which share a beginning; streams in hand could need more than four times the cache.

    What is submitted is never refused and gets its answer; some token is made in every step; memory stays flat.
    """
    rng = random.Random(7)
    rig = SchedulerRig(64, BLOCK, seqs=32, batched=64, context=64, host_slots=128)
    scheduler = rig.scheduler
    sent = 0
    sizes: list[int] = []
    settled_bytes = 0
    while sent < arrivals or scheduler.live:
        credit = scheduler.credit(sent, draining=False)
        slots, tokens = credit.free_slots, credit.free_kv_tokens
        while sent < arrivals and slots:
            prompt = [*range(8 * rng.randint(0, 2)), *(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 16)))]
            tokens -= rig.pool.blocks_for(len(prompt) + 1) * BLOCK
            if within_credit and tokens < 0:
                break
            rig.add(sent, prompt, rng.randint(1, 64 - len(prompt)), priority=rng.randint(1, 3))
            sent, slots = sent + 1, slots - 1
        if rng.random() < 0.05:
            scheduler.remove(rng.randrange(sent))
        sizes.append(sum(rig.pool.blocks_for(stream.reserved_tokens) for stream in live_streams(scheduler)))
        if scheduler.live:
            assert rig.step().streams, "something goes on in every step"
        for stream in [number for number in rig.answers if not scheduler.has(number)]:
            del rig.answers[stream]
        if sent > arrivals // 3 and not settled_bytes:
            settled_bytes = psutil.Process().memory_info().rss
    assert rig.pool.used == 0
    assert 0 < rig.preempted <= MOST_PREEMPTIONS * arrivals
    assert rig.offloaded_tokens > 0
    if not within_credit:
        assert statistics.median(sizes) > 4 * rig.pool.num_blocks
    assert psutil.Process().memory_info().rss - settled_bytes < 8e6


def live_streams(scheduler: Scheduler) -> list[Stream]:
    return [*scheduler.running.values(), *scheduler.waiting]


def test_waiting_streams_go_by_priority_then_arrival() -> None:
    rig = SchedulerRig(seqs=1)
    for stream, priority in enumerate((1, 2, 3, 3, 2, 1)):
        rig.add(stream, 1, 1, priority=priority)
    order = []
    while rig.scheduler.live:
        order += [admitted.stream for admitted in rig.step().admitted]
    assert order == [2, 3, 1, 4, 0, 5]


def test_a_long_prompt_goes_in_by_chunks_beside_the_decodes() -> None:
    rig = SchedulerRig(batched=8)
    rig.add(1, 2, 10)
    rig.step()
    rig.add(2, range(30, 50), 2)
    sizes = [[(p.stream, len(p.token_ids), p.logit_tokens) for p in rig.step().batch.slices] for _ in range(3)]
    assert sizes == [[(1, 1, 1), (2, 7, 0)], [(1, 1, 1), (2, 7, 0)], [(1, 1, 1), (2, 6, 1)]]


def test_several_prompts_go_on_side_by_side() -> None:
    rig = SchedulerRig(num_blocks=200, batched=64, context=300, seqs=8)
    for stream in range(5):
        rig.add(stream, range(100 * stream, 100 * stream + (20 if stream == 3 else 100)), 2)
    first = {piece.stream: len(piece.token_ids) for piece in rig.step().batch.slices}
    assert first == {0: 16, 1: 16, 2: 16, 3: 16}
    second = {piece.stream: len(piece.token_ids) for piece in rig.step().batch.slices}
    assert second == {0: 20, 1: 20, 2: 20, 3: 4}


@given(st.lists(st.integers(1, 500), max_size=12), st.integers(0, 600))
def test_shares_use_the_budget_and_no_more(left: list[int], budget: int) -> None:
    shares = fair_shares(left, budget)
    assert sum(shares) == min(budget, sum(left))
    assert all(0 <= share <= wanted for share, wanted in zip(shares, left, strict=True))


def test_prefill_limit_zero_pauses_prefill_and_not_decodes() -> None:
    rig = SchedulerRig()
    rig.add(1)
    rig.step()
    rig.add(2, (9, 9, 9, 9))
    rig.scheduler.limits = Limits(max_prefill_tokens=0)
    assert [piece.stream for piece in rig.step().batch.slices] == [1]
    rig.scheduler.limits = Limits(max_prefill_tokens=3)
    assert rig.step().prefill_tokens == 3


def test_max_batch_stops_admission_and_never_preempts() -> None:
    rig = SchedulerRig()
    for stream in range(3):
        rig.add(stream, max_tokens=9)
    while len(rig.scheduler.running) < 3:
        rig.step()
    rig.add(3)
    rig.scheduler.limits = Limits(max_batch=1)
    plan = rig.step()
    assert [piece.stream for piece in plan.batch.slices] == [0, 1, 2]
    assert rig.scheduler.credit(4, draining=False).free_slots == 0


def test_a_request_that_can_never_fit_is_refused_and_blocks_nobody() -> None:
    rig = SchedulerRig(num_blocks=4)
    ended = rig.scheduler.add(Stream.start(submission(1, range(14), 3), 64, 0.0))
    assert ended is not None
    assert (ended.cause, ended.error) == (StopCause.ERROR, EngineError.UNSATISFIABLE)
    assert "17 tokens of a KV cache of 16" in ended.error_text
    rig.add(2)
    assert [admitted.stream for admitted in rig.step().admitted] == [2]


def test_a_stream_never_holds_more_than_the_context() -> None:
    rig = SchedulerRig(num_blocks=16, context=64)
    rig.add(1, 60, 1000)
    rig.run()
    assert len(rig.answers[1]) == 4


def test_credit_counts_what_streams_begin_with_and_soon_grow_into() -> None:
    rig = SchedulerRig(num_blocks=10)
    credit = rig.scheduler.credit
    assert credit(0, False) == replace(credit(0, False), free_slots=4, free_kv_tokens=40)
    rig.add(1, 6, 6)  # begins with two blocks and may need three
    waiting = credit(1, draining=False)
    assert (waiting.submits_seen, waiting.free_slots, waiting.free_kv_tokens) == (1, 3, 32)
    rig.step()
    assert credit(1, False).free_kv_tokens == 28, "its last block is as good as full"
    assert credit(1, draining=True).free_slots == 0
    rig.scheduler.remove(1)
    assert credit(1, False).free_kv_tokens == 40, "what is only cached is free"


def test_a_resumed_stream_prefills_what_it_had_emitted() -> None:
    rig = SchedulerRig()
    stream = rig.add(1, (5, 6), 4, emitted_ids=(7, 8, 9))
    assert stream.generated == 3
    plan = rig.step()
    assert plan.batch.slices[0].token_ids == [5, 6, 7, 8, 9]
    assert rig.scheduler.live == 0, "the fourth of four"


def test_a_resumed_stream_that_is_complete_ends_at_once() -> None:
    ended = SchedulerRig().scheduler.add(Stream.start(submission(1, (5,), 2, emitted_ids=(7, 8)), 64, 0.0))
    assert ended is not None
    assert ended.cause is StopCause.MAX_TOKENS


def test_a_batch_smaller_than_the_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="below max_num_seqs"):
        SchedulerRig(seqs=8, batched=4)


def test_expired_streams_are_named_in_any_state() -> None:
    scheduler = SchedulerRig(seqs=1).scheduler
    for number, left in enumerate((1.0, 2.0, None)):
        scheduler.add(Stream.start(submission(number, deadline_s=left), 64, now=10.0))
    scheduler.schedule()
    assert list(scheduler.running) == [0]
    assert scheduler.expired(11.5) == [0]
    assert scheduler.expired(12.0) == [0, 1]
