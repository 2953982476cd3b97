"""What is computed once is not computed again, and nobody reads what is not his."""

import pytest

from coldplate_engine.batch import StepBatch
from coldplate_engine.block_pool import BlockPool, OutOfBlocks
from coldplate_engine.messages import Command, EngineError
from coldplate_engine.prefix_cache import block_key, root_key
from support.engine_loop import LoopRig, submission
from support.fake_runner import FakeRunner, greedy_answer
from support.scheduler_rig import SchedulerRig

BLOCK = 4


def prefilled(rig: SchedulerRig, stream: int, prompt: range | tuple[int, ...], **options: object) -> int:
    """Tokens of a prompt that have to be computed, until its first token."""
    rig.add(stream, prompt, 2, **options)
    computed = 0
    while rig.scheduler.has(stream):
        computed += rig.step().prefill_tokens
    return computed


def test_a_prompt_seen_before_costs_its_last_block_at_most() -> None:
    rig = SchedulerRig()
    assert prefilled(rig, 1, range(17)) == 17
    assert prefilled(rig, 2, range(17)) == 1, "four blocks are there"
    assert prefilled(rig, 3, range(16)) == 4, "one token must be computed, and with it its block"
    assert prefilled(rig, 4, (*range(10), 50, 51, 52)) == 5, "two blocks are the same"
    assert prefilled(rig, 5, (1, *range(1, 17))) == 17, "another beginning is another prompt"
    assert rig.cached_tokens == 16 + 12 + 8


def test_running_streams_share_and_a_new_turn_finds_the_answer_before_it() -> None:
    rig = SchedulerRig(batched=64)
    first = rig.add(1, 8, 30)
    rig.step()
    second = rig.add(2, 9, 30)
    rig.step()
    assert first.block_table[:2] == second.block_table[:2]
    rig.run()
    turn = (*range(8), *rig.answers[1], 1, 2, 3)
    assert prefilled(rig, 3, turn) == len(turn) - 36, "of 38 tokens of question and answer nine blocks are full"


def test_salts_and_switched_off_caching_share_nothing() -> None:
    rig = SchedulerRig()
    prefilled(rig, 1, range(17))
    assert prefilled(rig, 2, range(17), cache_salt="tenant") == 17
    assert prefilled(rig, 3, range(17), cache_salt="tenant") == 1
    off = SchedulerRig(prefix_caching=False)
    assert prefilled(off, 1, range(17)) == prefilled(off, 2, range(17)) == 17
    assert off.pool.cached == 0


def test_a_request_for_prompt_logprobs_computes_its_whole_prompt() -> None:
    rig = SchedulerRig()
    prefilled(rig, 1, range(17))
    assert prefilled(rig, 2, range(17), prompt_logprobs=0) == 17
    assert prefilled(rig, 3, range(17)) == 1


def test_siblings_wait_for_the_first_and_share_its_prompt() -> None:
    rig = SchedulerRig(num_blocks=64, seqs=8, batched=64, context=128)
    first = rig.add(1, 40, 8)
    siblings = [rig.add(number, 40, 8, sibling_of=1) for number in (2, 3, 4)]
    other = rig.add(5, (9, 9, 9), 8)
    assert [admitted.stream for admitted in rig.step().admitted] == [1, 5], "others need not wait for them"
    assert other.computed
    plan = rig.step()
    assert [(admitted.stream, admitted.cached_tokens) for admitted in plan.admitted] == [(2, 36), (3, 36), (4, 36)]
    assert all(sibling.block_table[:9] == first.block_table[:9] for sibling in siblings)
    rig.run()
    assert rig.answers[1] == rig.answers[2] == rig.answers[4]


def test_siblings_of_a_cancelled_stream_go_on_without_it() -> None:
    rig = SchedulerRig(batched=16)
    rig.add(1, 40, 8)
    rig.add(2, 40, 8, sibling_of=1)
    rig.step()
    rig.scheduler.remove(1)
    assert rig.step().admitted[0].cached_tokens == 16, "what it had computed is of use"
    rig.run()


def test_what_was_computed_for_a_stream_that_failed_is_used_by_nobody() -> None:
    rig = SchedulerRig()
    stream = rig.add(1, 17, 9)
    rig.step()
    assert stream.decoding is False
    rig.step()
    rig.scheduler.remove(1, forget=True)
    assert rig.pool.cached == 0
    assert prefilled(rig, 2, range(17)) == 17


def test_a_preempted_stream_finds_most_of_its_own_blocks_again() -> None:
    rig = SchedulerRig(num_blocks=12, context=48, batched=32)
    old, young = rig.add(1, range(12), 20), rig.add(2, range(20, 32), 20)
    rig.run()
    assert (old.preemptions, young.preemptions) == (0, 1)
    assert 0 < rig.cached_tokens < rig.preempted_tokens
    assert rig.answers[2] == greedy_answer(range(20, 32), 20)


def test_the_lowest_class_gives_way_first_and_the_oldest_of_the_highest_never() -> None:
    rig = SchedulerRig(num_blocks=16, context=64, batched=64, seqs=4)
    streams = [rig.add(number, range(10 * number, 10 * number + 8), 50, priority=number % 2) for number in range(4)]
    rig.run()
    assert [stream.preemptions > 0 for stream in streams] == [True, False, True, True]
    assert streams[0].preemptions + streams[2].preemptions + streams[3].preemptions == rig.preempted <= 9


def test_eight_that_fit_alone_share_a_cache_of_one() -> None:
    """The server's credit kept aside: all eight are in hand at once."""
    rig = SchedulerRig(num_blocks=4, seqs=8, batched=64, context=16)
    for number in range(8):
        rig.add(number, range(number, number + 4), 12)
    rig.run(200)
    assert rig.preempted <= 3 * 8


def test_evicted_blocks_come_back_from_host_memory() -> None:
    rig = SchedulerRig(num_blocks=12, context=48, batched=64, host_slots=40)
    prompts = [range(start, start + 33) for start in (0, 100, 200)]
    assert [prefilled(rig, number, prompt) for number, prompt in enumerate(prompts)] == [33, 33, 33]
    assert [prefilled(rig, 3 + number, prompt) for number, prompt in enumerate(prompts)] == [1, 1, 1]
    assert rig.offloaded_tokens > 0
    assert rig.cached_tokens == 3 * 32


def test_when_copies_fail_host_memory_is_given_up_and_every_text_is_right() -> None:
    class Broken(FakeRunner):
        def write_blocks(self, blocks: list[int], data: object) -> None:
            raise RuntimeError("copy failed")

    rig = LoopRig(runner=Broken(), num_blocks=12, host_blocks=40, max_num_batched_tokens=64)
    prompts = {number: [number] * 33 for number in range(1, 4)}
    script: list[list[Command]] = []
    for turn in (0, 10):
        for number, prompt in prompts.items():
            script += [[submission(turn + number, prompt, 3)], [], [], []]
    rig.run(*script)
    for number, prompt in prompts.items():
        assert rig.tokens[number] == rig.tokens[10 + number] == greedy_answer(prompt, 3)
    assert rig.scheduler.prefixes.host is None
    assert rig.pool.used == 0


def test_a_step_message_tells_cached_tokens_once_a_stream() -> None:
    rig = LoopRig(num_blocks=10, max_num_batched_tokens=64)
    rig.run([submission(1, range(8), 24), submission(2, range(20, 28), 24)], *[[]] * 60, [submission(3, range(9), 2)])
    admitted = [item for output in rig.outputs for item in output.admitted]
    assert [(item.stream, item.cached_tokens) for item in admitted] == [(1, 0), (2, 0), (3, 8)]
    assert sum(output.stats.preempted for output in rig.outputs) == 1
    assert sum(output.stats.preempted_tokens for output in rig.outputs) > 0
    assert sum(output.stats.cached_tokens for output in rig.outputs) > 8
    assert rig.outputs[-1].stats.kv_blocks_cached > 0
    assert rig.outputs[-1].stats.kv_blocks_used == 0


def test_a_poisoned_prompt_leaves_nothing_behind() -> None:
    rig = LoopRig(runner=FakeRunner(poison=63))
    prompt = [*range(12), 63]
    rig.run([submission(1, prompt, 4)], [], [submission(2, prompt, 4)], [], [submission(3, range(13), 4)])
    assert {rig.finished[number].error for number in (1, 2)} == {EngineError.NON_FINITE_LOGITS}
    assert rig.tokens[3] == greedy_answer(range(13), 4)
    computed = [sum(len(piece.token_ids) for piece in batch.slices) for batch in rig.runner.calls]
    assert computed[:3] == [13, 13, 13], "neither poisoned prompt served another"


def test_drafts_are_cut_to_what_may_still_be_said_and_never_take_a_block_from_others() -> None:
    rig = SchedulerRig(num_blocks=6, context=24, batched=24)
    stream = rig.add(1, 3, 12)
    rig.step()
    stream.drafts = [0] * 50
    piece = rig.step().batch.slices[0]
    assert (len(piece.token_ids), piece.logit_tokens) == (11, 11), "one and ten guesses make eleven of twelve"
    assert stream.drafts == []
    other = rig.add(2, 11, 12)
    rig.step()
    assert rig.pool.free + rig.pool.used == 6
    stream.drafts = [0] * 50
    rig.step()
    assert other.preemptions == 0


def test_right_guesses_count_as_computed_and_wrong_ones_do_not() -> None:
    rig = SchedulerRig(batched=32)
    stream = rig.add(1, 6, 20)
    rig.step()
    right = greedy_answer(stream.tokens, 5)
    stream.drafts = [*right[:3], (right[3] + 1) % 64, right[4]]
    before = stream.computed
    plan: StepBatch = rig.step().batch
    assert len(plan.slices[0].token_ids) == 6
    assert stream.computed == before + 4, "the last token and three guesses"
    rig.run()
    assert rig.answers[1] == greedy_answer(range(6), 20)


def test_keys_depend_on_all_that_came_before() -> None:
    one = block_key(root_key(""), (1, 2, 3, 4))
    assert one != block_key(root_key("a"), (1, 2, 3, 4))
    assert one != block_key(one, (1, 2, 3, 4))
    assert one == block_key(root_key(""), [1, 2, 3, 4])


def test_the_pool_refuses_what_would_lose_a_block() -> None:
    pool = BlockPool(4, BLOCK)
    blocks = pool.take(3)
    pool.keep(blocks[0], b"key")
    with pytest.raises(OutOfBlocks, match=r"2 blocks wanted, 1 of 4 are free"):
        pool.take(2)
    with pytest.raises(ValueError, match="not all held"):
        pool.give_back([blocks[1], blocks[1]])
    pool.give_back(blocks)
    with pytest.raises(ValueError, match="not all held"):
        pool.give_back(blocks[:1])
    with pytest.raises(ValueError, match="nothing to share"):
        pool.share(blocks[1])
    assert (pool.free, pool.cached, pool.find(b"key")) == (4, 1, blocks[0])
    pool.take(4)
    assert pool.find(b"key") is None
    assert pool.evicted == [(blocks[0], b"key")]
    assert pool.is_whole()
