"""A real, tiny model in float32: what a stream says does not depend on who runs beside it or what is cached."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate.clock import ManualClock
from coldplate_engine.block_pool import BlockPool
from coldplate_engine.devices.cpu import CpuDevice
from coldplate_engine.loop import EngineLoop
from coldplate_engine.messages import Cancel, Command, Connect, Sampling, StepOutput, Submission
from coldplate_engine.models.decoder_runner import DecoderRunner
from coldplate_engine.offload import HostBlocks, HostCache
from coldplate_engine.scheduler import Scheduler
from coldplate_engine.step_executor import StepExecutor
from coldplate_engine.step_sampler import StepSampler
from support import checkpoints
from support.engine_loop import ScriptedInbox

BLOCK, BLOCKS, CONTEXT, HOST = 4, 20, 64, 24
PROMPT = [(7 * at + 3) % 250 for at in range(40)]


@cache
def model() -> DecoderRunner:
    """One runner for all examples: they find each other's remains in its pool, as streams do."""
    torch.set_num_threads(1)
    checkpoint = checkpoints.random_llama(seed=5)
    runner = CpuDevice(1).load(checkpoint.path, "float32", CONTEXT, lambda phase, share: None)
    runner.allocate_kv(BLOCKS, BLOCK)
    return runner


def run(script: list[list[Command]], prefix_caching: bool, offload: bool) -> tuple[dict[int, list[int]], int, int]:
    """What each stream said, the preemptions, and the tokens that came from the cache."""
    runner, device, clock = model(), CpuDevice(1), ManualClock()
    host = HostCache(HOST) if offload else None
    blocks = HostBlocks(runner, HOST, runner.kv_bytes_per_token() * BLOCK, pinned=False) if offload else None
    scheduler = Scheduler(BlockPool(BLOCKS, BLOCK), 6, 24, CONTEXT, prefix_caching=prefix_caching, host=host)
    sampler = StepSampler()
    executor = StepExecutor(device, runner, sampler, 24, host_blocks=blocks)
    said: dict[int, list[int]] = {}
    outputs: list[StepOutput] = []

    def emit(output: StepOutput) -> None:
        outputs.append(output)
        for stream, token in zip(output.streams, output.token_ids, strict=True):
            said.setdefault(stream, []).append(token)

    first: list[Command] = [Connect(emit)]
    inbox = ScriptedInbox(clock, lambda poll: first if poll == 0 else script[poll - 1] if poll <= len(script) else [])
    EngineLoop(scheduler, executor, device, runner.facts.vocabulary_size, inbox, clock, sampler=sampler).run()
    assert scheduler.pool.used == 0
    assert scheduler.pool.is_whole()
    return (
        said,
        sum(output.stats.preempted for output in outputs),
        sum(output.stats.cached_tokens for output in outputs),
    )


@cache
def alone(submission: Submission) -> tuple[int, ...]:
    return tuple(run([[submission]], prefix_caching=False, offload=False)[0].get(submission.stream, ()))


def stream(number: int, beginning: int, own: int, max_tokens: int, hot: bool, priority: int) -> Submission:
    """``beginning`` tokens that all share, then ``own`` that few do."""
    prompt = (*PROMPT[:beginning], *((own * at + 1) % 250 for at in range(own)), own + 1)
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=number % 5) if hot else Sampling()
    return Submission(number, prompt, max_tokens, sampling=sampling, priority=priority)


STREAMS = st.tuples(
    st.sampled_from([0, 4, 17, 30]), st.integers(0, 8), st.integers(1, 24), st.booleans(), st.integers(1, 3)
)
ROUNDS = st.lists(st.lists(st.one_of(STREAMS, st.integers(1, 12)), max_size=2), min_size=4, max_size=14)


@settings(max_examples=10, deadline=None)
@given(rounds=ROUNDS, offload=st.booleans())
def test_every_stream_says_what_it_says_alone(rounds: list[list[tuple[int, ...] | int]], offload: bool) -> None:
    check_against_alone(rounds, offload)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(rounds=ROUNDS, offload=st.booleans())
def test_every_stream_says_what_it_says_alone_at_length(
    rounds: list[list[tuple[int, ...] | int]], offload: bool
) -> None:
    check_against_alone(rounds, offload)


def check_against_alone(rounds: list[list[tuple[int, ...] | int]], offload: bool) -> None:
    """Arrivals and cancels in any order; numbers are cancels of earlier streams."""
    script: list[list[Command]] = []
    made: dict[int, Submission] = {}
    cancelled: set[int] = set()
    for actions in rounds:
        commands: list[Command] = []
        for action in actions:
            if isinstance(action, int):
                cancelled.add(action)
                commands.append(Cancel(action))
            elif len(made) < 6:
                number = len(made) + 1
                beginning, own, max_tokens, hot, priority = action
                made[number] = stream(number, beginning, own, max_tokens, bool(hot), priority)
                commands.append(made[number])
        script.append(commands)
    said, _, _ = run(script, prefix_caching=True, offload=offload)
    for number, submission in made.items():
        whole = alone(submission)
        got = tuple(said.get(number, ()))
        assert got == whole[: len(got)]
        assert number in cancelled or got == whole


def test_preempted_streams_and_prefix_hits_say_what_they_say_alone() -> None:
    submissions = [stream(number, 17, number, 40, hot=number % 2 == 0, priority=2) for number in range(1, 7)]
    for offload in (False, True):
        said, preempted, cached = run([[*submissions[:3]], [], [], [*submissions[3:]]], True, offload)
        assert preempted > 0
        assert cached > 0
        for submission in submissions:
            assert tuple(said[submission.stream]) == alone(submission)
