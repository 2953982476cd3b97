"""The step loop over a scripted model: what goes in, what comes out, and what it does when the device fails."""

import asyncio
import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate.clock import MonotonicClock
from coldplate.limits import Limits
from coldplate_engine.batch import StepBatch
from coldplate_engine.inbox import EXIT_OK, EXIT_REPLACE_DEVICE, CommandQueue
from coldplate_engine.loop import EngineLoop
from coldplate_engine.messages import (
    Cancel,
    Command,
    Disconnect,
    Drain,
    EngineError,
    Sampling,
    SetLimits,
    Shutdown,
    StopCause,
    Submission,
)
from support.engine_loop import LoopRig, submission
from support.fake_runner import VOCABULARY, FakeRunner, greedy_answer


def oom(number: int, batch: StepBatch) -> None:
    raise torch.OutOfMemoryError("out of memory")


def test_streams_joining_at_any_moment_get_their_own_text() -> None:
    rig = LoopRig(max_num_batched_tokens=8)
    prompts = {i: [(7 * i + j) % VOCABULARY for j in range(1 + 3 * i)] for i in range(6)}
    script: list[list[Command]] = []
    for number, prompt in prompts.items():
        script += [[submission(number, prompt, 9)], []]
    assert rig.run(*script) == EXIT_OK
    for number, prompt in prompts.items():
        assert rig.tokens[number] == greedy_answer(prompt, 9)
        assert rig.finished[number].cause is StopCause.MAX_TOKENS
    assert rig.pool.used == 0


def test_stop_tokens_end_a_stream_and_are_not_reported() -> None:
    answer = greedy_answer((1, 2, 3), 8)
    rig = LoopRig()
    rig.run([submission(1, max_tokens=8, stop_ids=frozenset({answer[3]}))])
    assert rig.tokens[1] == answer[:3]
    assert (rig.finished[1].cause, rig.finished[1].stop_token_id) == (StopCause.STOP_TOKEN, answer[3])


def test_a_rest_longer_than_any_timer_is_waited_for_and_ended_by_a_new_limit() -> None:
    """The clock of a thread takes no such time-out, so the real inbox is asked."""
    inbox = CommandQueue()
    threading.Timer(0.05, inbox.put, [Cancel(7)]).start()
    for rest_s in (1e300, float("inf")):
        inbox.put(Cancel(6))
        assert inbox.take(rest_s) == [Cancel(6)]
    assert inbox.take(float("inf")) == [Cancel(7)]
    for duty in (1e-9, 1e-300, 5e-324):
        rig = LoopRig(step_s=0.01)
        slow: list[Command] = [submission(1, max_tokens=3), SetLimits(1, Limits(duty=duty))]
        assert rig.run(slow, [], [], [SetLimits(2, Limits())]) == EXIT_OK
        assert rig.tokens[1] == greedy_answer((1, 2, 3), 3)


def test_the_context_ends_a_stream() -> None:
    rig = LoopRig(max_model_len=8)
    rig.run([submission(1, range(7), 50), submission(2, range(8), 50)])
    assert len(rig.tokens[1]) == 1
    assert rig.finished[1].cause is StopCause.CONTEXT_FULL
    assert rig.finished[2].error is EngineError.UNSATISFIABLE


def test_a_resumed_stream_goes_on_as_if_it_had_never_stopped() -> None:
    sampled = Sampling(temperature=1.5, seed=77)
    whole, resumed = LoopRig(), LoopRig()
    whole.run([submission(1, max_tokens=10, sampling=sampled)])
    head = tuple(whole.tokens[1][:4])
    resumed.run([submission(1, max_tokens=10, sampling=sampled, emitted_ids=head)])
    assert list(head) + resumed.tokens[1] == whole.tokens[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt": ()}, "no tokens"),
        ({"prompt": (1, VOCABULARY)}, f"token id {VOCABULARY} is outside"),
        ({"prompt": (-1,)}, "token id -1 is outside"),
        ({"emitted_ids": (VOCABULARY,)}, "outside the vocabulary"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"sampling": Sampling(temperature=float("nan"))}, "temperature is nan"),
        ({"sampling": Sampling(top_p=0.0)}, "top_p is 0"),
        ({"sampling": Sampling(min_p=2.0)}, "min_p is 2"),
        ({"sampling": Sampling(top_k=-1)}, "top_k is -1"),
    ],
)
def test_unusable_submissions_end_at_once_and_alone(options: dict[str, object], said: str) -> None:
    rig = LoopRig()
    prompt = options.pop("prompt", (1, 2, 3))
    max_tokens = options.pop("max_tokens", 4)
    assert isinstance(prompt, tuple)
    assert isinstance(max_tokens, int)
    rig.run([submission(1, prompt, max_tokens, **options), submission(2)])
    assert rig.finished[1].error is EngineError.UNSATISFIABLE
    assert said in rig.finished[1].error_text
    assert rig.tokens[2] == greedy_answer((1, 2, 3), 4)


def test_cancel_in_every_state() -> None:
    rig = LoopRig(max_num_seqs=8)
    limit = SetLimits(1, Limits(max_batch=1))
    rig.run(
        [
            limit,
            submission(1, max_tokens=20),
            submission(2),
            Cancel(2),
            Cancel(9),
        ],  # 2 before it was scheduled; 9 unknown
        [submission(3)],
        [Cancel(3), Cancel(1)],  # waiting; running
        [Cancel(1), Cancel(3), submission(4)],  # after the end
    )
    assert {stream: item.cause for stream, item in rig.finished.items()} == {
        1: StopCause.CANCELLED,
        2: StopCause.CANCELLED,
        3: StopCause.CANCELLED,
        4: StopCause.MAX_TOKENS,
    }
    assert 2 not in rig.tokens
    assert rig.pool.used == 0
    assert len(rig.tokens[1]) == 2, "cancelled before its third step"


def test_cancelled_blocks_are_free_before_the_next_step() -> None:
    rig = LoopRig(num_blocks=4)
    rig.run([submission(1, range(4), 12)], [Cancel(1), submission(2, range(4), 12)])
    assert rig.finished[2].cause is StopCause.MAX_TOKENS
    after_cancel = next(output for output in rig.outputs if output.finished)
    assert after_cancel.stats.kv_blocks_used == 0
    assert after_cancel.number == 1, "told without waiting for a step"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.one_of(
                st.builds(lambda p, m: ("add", p, m), st.integers(1, 20), st.integers(1, 12)),
                st.builds(lambda s: ("cancel", s, 0), st.integers(0, 20)),
                st.builds(lambda b, p: ("limits", b, p), st.integers(1, 4), st.integers(1, 9)),
            ),
            max_size=3,
        ),
        max_size=20,
    )
)
def test_every_stream_ends_once_and_texts_are_right(rounds: list[list[tuple[str, int, int]]]) -> None:
    rig = LoopRig(num_blocks=16, max_num_seqs=4, max_num_batched_tokens=8)
    seq, numbers = itertools.count(1), itertools.count(0)
    prompts: dict[int, list[int]] = {}
    script: list[list[Command]] = []
    for actions in rounds:
        commands: list[Command] = []
        for kind, a, b in actions:
            if kind == "add":
                number = next(numbers)
                prompts[number] = [(number + i) % VOCABULARY for i in range(a)]
                commands.append(submission(number, prompts[number], b))
            elif kind == "cancel":
                commands.append(Cancel(a))
            else:
                commands.append(SetLimits(next(seq), Limits(max_batch=a, max_prefill_tokens=b)))
        script.append(commands)
    rig.run(*script)
    assert set(rig.finished) == set(prompts)
    for number, tokens in rig.tokens.items():
        assert tokens == greedy_answer(prompts[number], len(tokens))
    assert rig.pool.used == 0
    assert rig.pool.is_whole()


def test_credit_tells_what_is_free_as_of_the_submits_seen() -> None:
    rig = LoopRig(num_blocks=10, block_size=4, max_num_seqs=3)
    rig.run([submission(1, range(6), 2)], [submission(2, range(6), 6)], [Drain()])
    seen = [(o.credit.submits_seen, o.credit.free_slots, o.credit.free_kv_tokens) for o in rig.outputs]
    assert (1, 2, 32) in seen
    assert seen[-1] == (2, 0, 40), "everything back, nothing more wanted"


def test_submissions_without_credit_or_while_draining_are_refused() -> None:
    rig = LoopRig(max_num_seqs=2)
    rig.run([submission(i, max_tokens=9) for i in range(3)], [Drain(), submission(7)])
    assert rig.finished[2].error is rig.finished[7].error is EngineError.REFUSED
    assert rig.finished[0].cause is StopCause.MAX_TOKENS


def test_a_stream_number_used_twice_leaves_the_first_alone() -> None:
    rig = LoopRig()
    rig.run([submission(1), submission(1, (9,))])
    assert rig.tokens[1] == greedy_answer((1, 2, 3), 4)


def test_limits_act_on_the_next_step_and_are_acknowledged() -> None:
    rig = LoopRig()
    rig.run([SetLimits(5, Limits(max_prefill_tokens=2, cpu_share=0.5)), submission(1, range(6), 2)])
    assert rig.outputs[0].limits_seq == 5
    assert [batch.token_count for batch in rig.runner.calls] == [2, 2, 2, 1]
    assert rig.device.cpu_shares == [0.5]


def test_paused_prefill_waits_without_spinning() -> None:
    rig = LoopRig()
    polls_at_release = 0

    def script(poll: int) -> list[Command]:
        nonlocal polls_at_release
        if poll == 0:
            return [SetLimits(1, Limits(max_prefill_tokens=0)), submission(1)]
        if poll == 1:
            polls_at_release = len(rig.runner.calls)
            return [SetLimits(2, Limits())]
        return []

    rig.run_with(script)
    assert polls_at_release == 0
    assert rig.tokens[1] == greedy_answer((1, 2, 3), 4)
    assert any(o.credit.submits_seen == 1 and not o.streams for o in rig.outputs), "credit told without a step"


@pytest.mark.parametrize("duty", [0.1, 0.35, 0.9])
def test_duty_share_is_kept(duty: float) -> None:
    rig = LoopRig(step_s=0.02, max_model_len=200)
    rig.run([SetLimits(1, Limits(duty=duty)), submission(1, max_tokens=100)])
    busy = 0.02 * len(rig.device.steps)
    assert busy / rig.clock.now() == pytest.approx(duty, rel=0.03)


def test_new_limits_interrupt_the_pause() -> None:
    rig = LoopRig(step_s=1.0)
    rig.run([SetLimits(1, Limits(duty=0.01)), submission(1, max_tokens=3)], [SetLimits(2, Limits())])
    assert rig.finished[1].cause is StopCause.MAX_TOKENS
    assert rig.clock.now() == pytest.approx(3.0)


def test_a_deadline_ends_the_work() -> None:
    rig = LoopRig(step_s=1.0)
    rig.run([submission(1, max_tokens=20, deadline_s=4.5), submission(2, max_tokens=7)])
    assert rig.finished[1].cause is StopCause.CANCELLED
    assert len(rig.tokens[1]) == 5
    assert rig.tokens[2] == greedy_answer((1, 2, 3), 7)


def test_a_new_server_starts_from_nothing() -> None:
    rig = LoopRig()
    rig.run([SetLimits(4, Limits(max_batch=1)), submission(1, max_tokens=50), submission(2)], [Disconnect()])
    assert rig.pool.used == 0
    assert rig.scheduler.live == 0
    assert rig.scheduler.limits == Limits()
    assert not rig.finished, "nobody is there to be told"


def test_shutdown_lets_streams_finish_and_now_does_not() -> None:
    soft, hard = LoopRig(), LoopRig()
    assert soft.run([submission(1, max_tokens=9)], [Shutdown()], [submission(2)]) == EXIT_OK
    assert soft.finished[1].cause is StopCause.MAX_TOKENS
    assert soft.finished[2].error is EngineError.REFUSED
    assert hard.run([submission(1, max_tokens=9)], [Shutdown(now=True)]) == EXIT_OK
    assert hard.finished[1].cause is StopCause.CANCELLED


def test_poisoned_logits_fail_one_stream_only() -> None:
    rig = LoopRig(runner=FakeRunner(poison=60))
    rig.run([submission(1, max_tokens=2), submission(2, (60, 1), 20), submission(3, (2, 2), 2)])
    assert rig.finished[2].error is EngineError.NON_FINITE_LOGITS
    assert 2 not in rig.tokens
    assert rig.tokens[1] == greedy_answer((1, 2, 3), 2)
    assert rig.tokens[3] == greedy_answer((2, 2), 2)


def test_out_of_memory_shrinks_the_step_and_loses_nobody() -> None:
    limit = 5

    def before(number: int, batch: StepBatch) -> None:
        if batch.token_count > limit:
            raise RuntimeError("NPU out of memory. Tried to allocate 22.00 MiB (NPU 0; 8.00 GiB total capacity)")

    rig = LoopRig(runner=FakeRunner(before=before), max_num_seqs=8, max_num_batched_tokens=64)
    prompts = {i: [i + 1] * (3 + 4 * i) for i in range(5)}
    assert rig.run([submission(i, prompt, 6) for i, prompt in prompts.items()]) == EXIT_OK
    assert {i: rig.tokens[i] for i in prompts} == {i: greedy_answer(prompt, 6) for i, prompt in prompts.items()}
    assert rig.executor.cap.binds


def test_the_memory_cap_grows_back() -> None:
    def before(number: int, batch: StepBatch) -> None:
        if number == 2:
            raise torch.OutOfMemoryError

    rig = LoopRig(runner=FakeRunner(before=before), max_num_batched_tokens=32, max_model_len=400, num_blocks=200)
    rig.run([submission(i, max_tokens=380) for i in range(2)])
    assert all(len(tokens) == 380 for tokens in rig.tokens.values())
    assert not rig.executor.cap.binds


def test_out_of_memory_for_ever_ends_streams_and_then_the_worker() -> None:
    rig = LoopRig(runner=FakeRunner(before=oom))
    code = rig.run([submission(i) for i in range(8)], [], [submission(9)])
    assert code == EXIT_REPLACE_DEVICE
    assert {item.error for item in rig.finished.values()} == {EngineError.OUT_OF_MEMORY}
    assert len(rig.finished) == 9
    assert len(rig.runner.calls) < 32


def test_errors_leave_no_tensor_behind() -> None:
    alive: list[object] = []

    class Big:
        def __del__(self) -> None:
            alive.remove(id(self))

    def before(number: int, batch: StepBatch) -> None:
        big = Big()
        alive.append(id(big))
        try:
            raise ValueError("first")
        except ValueError as error:
            raise torch.OutOfMemoryError from error

    rig = LoopRig(runner=FakeRunner(before=before))
    rig.run([submission(1)])
    assert rig.finished[1].error is EngineError.OUT_OF_MEMORY
    assert alive == []


def test_a_lost_device_ends_every_stream_once_and_the_worker() -> None:
    def before(number: int, batch: StepBatch) -> None:
        if number >= 3:
            raise RuntimeError("npu:0 NPU function error: x, error code is 507035")

    rig = LoopRig(runner=FakeRunner(before=before))
    code = rig.run([SetLimits(1, Limits(max_batch=2)), *(submission(i, max_tokens=9) for i in range(3))])
    assert code == EXIT_REPLACE_DEVICE
    assert {i: item.error for i, item in rig.finished.items()} == dict.fromkeys(range(3), EngineError.DEVICE)
    assert rig.tokens[0] == greedy_answer((1, 2, 3), 2), "what had been computed was sent"


@pytest.mark.parametrize("error", [RuntimeError("odd"), asyncio.CancelledError(), SystemExit(1)])
def test_a_stream_that_fails_the_step_fails_alone(error: BaseException) -> None:
    def before(number: int, batch: StepBatch) -> None:
        if any(piece.stream == 3 for piece in batch.slices):
            raise error

    rig = LoopRig(runner=FakeRunner(before=before))
    assert rig.run([submission(i, (i, 1), 5) for i in range(6)]) == EXIT_OK
    assert rig.finished[3].error is EngineError.DEVICE
    for i in (0, 1, 2, 4, 5):
        assert rig.tokens[i] == greedy_answer((i, 1), 5)


def test_a_device_that_fails_every_step_is_given_up() -> None:
    def before(number: int, batch: StepBatch) -> None:
        raise RuntimeError("odd")

    rig = LoopRig(runner=FakeRunner(before=before), max_num_seqs=1)
    code = rig.run_with(lambda poll: [submission(poll)] if poll < 20 else [])
    assert code == EXIT_REPLACE_DEVICE
    assert len(rig.finished) < 20


def test_the_command_queue_wakes_a_waiting_loop() -> None:
    rig = LoopRig()
    inbox = CommandQueue()
    loop = EngineLoop(rig.scheduler, rig.executor, rig.device, VOCABULARY, inbox, MonotonicClock(), sampler=rig.sampler)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(loop.run()))
    thread.start()
    inbox.put(Submission(1, (1,), 2))
    inbox.put(Shutdown())
    thread.join(20)
    assert codes == [EXIT_OK]
