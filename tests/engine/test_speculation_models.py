"""Guessing ahead on a real, tiny model in float32: rows behind several tokens of a stream are those of single steps."""

from functools import cache

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate.clock import ManualClock
from coldplate_engine.block_pool import BlockPool
from coldplate_engine.devices.cpu import CpuDevice
from coldplate_engine.loop import EngineLoop
from coldplate_engine.messages import Cancel, Command, Connect, Constraint, Sampling, StepOutput
from coldplate_engine.models.decoder_runner import DecoderRunner
from coldplate_engine.scheduler import Scheduler
from coldplate_engine.speculation import Speculator
from coldplate_engine.step_executor import StepExecutor
from coldplate_engine.step_sampler import StepSampler
from support import checkpoints
from support.engine_loop import ScriptedInbox, submission
from support.random_model import BYTES_ENDS, CompileAtOnce

BLOCK, BLOCKS, CONTEXT = 4, 60, 96
RULES = CompileAtOnce()


@cache
def model() -> DecoderRunner:
    torch.set_num_threads(1)
    runner = CpuDevice(1).load(checkpoints.random_llama(seed=5).path, "float32", CONTEXT, lambda phase, share: None)
    runner.allocate_kv(BLOCKS, BLOCK)
    return runner


def run(script: list[list[Command]], speculator: Speculator | None) -> tuple[dict[int, list[int]], int]:
    """What each stream said, and how many guesses came true."""
    runner, device = model(), CpuDevice(1)
    sampler = StepSampler()
    outputs: list[StepOutput] = []
    first: list[Command] = [Connect(outputs.append)]
    inbox = ScriptedInbox(
        ManualClock(), lambda poll: first if poll == 0 else script[poll - 1] if poll <= len(script) else []
    )
    EngineLoop(
        Scheduler(BlockPool(BLOCKS, BLOCK), 4, 32, CONTEXT),
        StepExecutor(device, runner, sampler, 32),
        device,
        runner.facts.vocabulary_size,
        inbox,
        inbox.clock,
        sampler=sampler,
        end_of_text=BYTES_ENDS,
        constraints=RULES,
        speculator=speculator,
    ).run()
    said: dict[int, list[int]] = {}
    for output in outputs:
        for stream, token in zip(output.streams, output.token_ids, strict=True):
            said.setdefault(stream, []).append(token)
    return said, sum(output.stats.accepted_tokens for output in outputs)


OPTIONS = st.sampled_from(
    [
        {},
        {"sampling": Sampling(0.3, seed=8)},
        {"sampling": Sampling(1.0, top_k=2, seed=2, repetition_penalty=1.1)},
        {"constraint": Constraint("regex", "(ab|ba){9,20}")},
    ]
)
STREAMS = st.tuples(st.lists(st.integers(0, 3), min_size=2, max_size=20), st.integers(1, 40), OPTIONS)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.one_of(STREAMS, STREAMS, st.integers(0, 3)), min_size=1, max_size=6), st.integers(1, 6))
def test_texts_are_the_same_with_and_without(actions: list[object], most: int) -> None:
    script: list[list[Command]] = []
    cancelled: set[int] = set()
    for number, action in enumerate(actions):
        if isinstance(action, tuple):
            script += [[submission(number, action[0], action[1], **action[2])], []]
        elif isinstance(action, int):
            cancelled.add(action)
            script.append([Cancel(action)])
    plain, _ = run(script, None)
    guessing, _ = run(script, Speculator(most, 1, 3))
    for number in plain.keys() | guessing.keys():
        one, other = plain.get(number, []), guessing.get(number, [])
        common = min(len(one), len(other)) if number in cancelled else max(len(one), len(other))
        assert one[:common] == other[:common]


def test_a_constrained_repetition_is_guessed() -> None:
    constraint = Constraint("regex", "(ab){30,40}")
    script: list[list[Command]] = [[submission(1, (97, 98, 97), 60, constraint=constraint)]]
    plain, _ = run(script, None)
    guessing, accepted = run(script, Speculator(4, 1, 3))
    assert guessing == plain
    assert accepted > 0
