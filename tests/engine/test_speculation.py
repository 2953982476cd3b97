"""Guessing ahead: the index against a search, the decision by cost, and texts that do not depend on it."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate_engine.batch import StepBatch
from coldplate_engine.messages import Cancel, Command, Constraint, Sampling, StopCause, Submission, Thinking
from coldplate_engine.ngram_index import NgramIndex
from coldplate_engine.speculation import Speculator, StepCost
from coldplate_engine.stream import Stream
from support.engine_loop import LoopRig, submission
from support.random_model import BYTES_ENDS, CompileAtOnce, random_runner, text_of

RULES = CompileAtOnce()


def search(tokens: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """What ``NgramIndex.guess`` gives, by looking at every position."""
    best, best_length = None, shortest - 1
    for at in range(len(tokens) - 1, 0, -1):
        length = 0
        while length < min(longest, at) and tokens[at - 1 - length] == tokens[-1 - length]:
            length += 1
        if length > best_length:
            best, best_length = at, length
    if best is None:
        return []
    more = list(tokens)
    for place in range(best, best + count):
        more.append(more[place])
    return more[len(tokens) :]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=15), st.integers(1, 3), st.integers(0, 3), st.integers(1, 6))
def test_guesses_are_those_of_a_search(tokens: list[int], shortest: int, more: int, count: int) -> None:
    index = NgramIndex(shortest, shortest + more)
    for length in range(1, len(tokens) + 1):
        assert index.guess(tokens[:length], count) == search(tokens[:length], shortest, shortest + more, count)


def test_step_costs_are_a_line_once_steps_differ() -> None:
    cost = StepCost()
    for _ in range(5):
        cost.measured(4, 0.05)
    assert cost.line() is None
    for tokens in (1, 2, 8, 4, 12, 1):
        cost.measured(tokens, 0.03 + 0.005 * tokens)
    assert cost.line() == pytest.approx((0.03, 0.005), rel=1e-3)


def decide(share: float, step_s: float, token_s: float, batch: int) -> bool:
    """Whether a stream whose last token came before is guessed for, at such costs."""
    speculator = Speculator(4, 1, 2)
    for tokens in (1, 2, 3, 4, 5, 8, 12):
        speculator.cost.measured(tokens, step_s + token_s * tokens)
    stream = Stream.start(submission(1, (1, 2, 1, 2), 1000), 2000, 0.0)
    assert speculator.guess(stream, batch) != [] or batch > 1
    for _ in range(40):
        speculator.learn(stream, 100, round(100 * share))
    assert stream.drafting is not None
    stream.drafting.pause_until = 0
    return speculator.guess(stream, batch) != []


def test_guessing_goes_on_only_while_it_pays() -> None:
    assert decide(0.6, 0.03, 0.001, 1)
    assert not decide(0.01, 0.03, 0.005, 1)
    assert not decide(0.3, 0.03, 0.005, 64), "a large batch has no time to spare"
    assert decide(0.3, 0.03, 0.0, 64), "as long as tokens cost something"


def test_it_is_tried_again_after_ever_longer_pauses() -> None:
    speculator = Speculator(4, 1, 2)
    for tokens in (1, 2, 3, 8):
        speculator.cost.measured(tokens, 0.01 + 0.01 * tokens)
    stream = Stream.start(submission(1, (1, 2, 1, 2), 10_000), 20_000, 0.0)
    tries = []
    for length in range(3000):
        if speculator.guess(stream, 1):
            tries.append(length)
            speculator.learn(stream, 4, 0)
        stream.tokens.append(1 + length % 2)
    gaps = [b - a for a, b in pairwise(tries) if b - a > 1]
    assert gaps == sorted(gaps)
    assert gaps[0] >= 32
    assert gaps[-1] >= 512
    assert len(tries) < 60


def rig(guesses: int, **options: Any) -> LoopRig:
    """A model that soon repeats itself, with a speculator that never gives up."""
    options = dict[str, Any](runner=random_runner(memory=1), num_blocks=400, max_model_len=250) | options
    speculator = Speculator(guesses, 1, 4) if guesses else None
    return LoopRig(constraints=RULES, end_of_text=BYTES_ENDS, speculator=speculator, **options)


KINDS = st.sampled_from(
    [
        {},
        {"logprobs": 1},
        {"sampling": Sampling(0.6, seed=3)},
        {"sampling": Sampling(0.8, seed=9, repetition_penalty=1.2, presence_penalty=0.3), "logprobs": 0},
        {"sampling": Sampling(frequency_penalty=0.2, logit_bias=((7, 3.0),)), "min_tokens": 9},
        {"constraint": Constraint("regex", "((ab){2,9}c[0-9]{3,5}x)+"), "sampling": Sampling(0.5, seed=1)},
        {"constraint": Constraint("choices", choices=("abababababab", "abac")), "logprobs": 2},
        {"thinking": Thinking(1, 2, open=True, budget_tokens=9, close_ids=(3, 2, 4)), "prompt_logprobs": 0},
        {
            "thinking": Thinking(1, 2, open=True, budget_tokens=5, close_ids=(2, 4)),
            "constraint": Constraint("regex", "[ab]{3,30}"),
        },
    ]
)
STREAMS = st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 40), KINDS, st.booleans())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(STREAMS, st.integers(0, 6)), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(8, 40),
    st.integers(0, 3),
)
def test_texts_and_logprobs_are_the_same_with_and_without(
    actions: list[Any], guesses: int, step_tokens: int, pause: int
) -> None:
    script: list[list[Command]] = []
    cancelled = set()
    for number, action in enumerate(actions):
        if isinstance(action, int):
            cancelled.add(action)
            script.append([Cancel(action)])
        else:
            prompt, count, options, stops = action
            ends = BYTES_ENDS | {*range(0, 250, 9)} if stops else BYTES_ENDS
            least = min(options.get("min_tokens", 0), count)
            stream = submission(number, prompt, count, stop_ids=ends, **options | {"min_tokens": least})
            script.append([stream])
        script += [[]] * pause
    plain = rig(0, max_num_batched_tokens=step_tokens)
    guessing = rig(guesses, max_num_batched_tokens=step_tokens)
    assert plain.run(*script) == guessing.run(*script) == 0
    for number in plain.finished:
        one, other = plain.tokens.get(number, []), guessing.tokens.get(number, [])
        if number in cancelled:
            common = min(len(one), len(other))
            assert one[:common] == other[:common]
            continue
        assert one == other
        assert plain.finished[number] == guessing.finished[number]
        assert plain.logprobs_of(number) == guessing.logprobs_of(number)
    assert guessing.pool.used == 0


def test_repetitions_take_fewer_steps_and_are_counted() -> None:
    stream = submission(1, (1, 2, 3), 200, sampling=Sampling())
    plain, guessing = rig(0), rig(4)
    plain.run([stream])
    guessing.run([stream])
    assert guessing.tokens == plain.tokens
    assert len(guessing.runner.calls) < len(plain.runner.calls)
    drafted = sum(output.stats.draft_tokens for output in guessing.outputs)
    accepted = sum(output.stats.accepted_tokens for output in guessing.outputs)
    assert len(guessing.runner.calls) == 200 - accepted
    assert 0 < accepted <= drafted


def test_a_stop_among_the_guesses_ends_the_stream_there() -> None:
    answer_rig = rig(0)
    answer_rig.run([submission(1, (1, 2, 3), 100)])
    answer = answer_rig.tokens[1]
    late = (
        next(token for token in reversed(answer) if answer.count(token) == 1) if len(set(answer)) > 50 else answer[-1]
    )
    stop = frozenset({late})
    plain, guessing = rig(0), rig(5)
    for made in (plain, guessing):
        made.run([submission(1, (1, 2, 3), 100, stop_ids=stop)])
        assert made.finished[1].cause is StopCause.STOP_TOKEN
    assert guessing.tokens.get(1) == plain.tokens.get(1)


def test_a_step_cut_for_memory_keeps_the_guesses_right() -> None:
    def before(number: int, batch: StepBatch) -> None:
        if batch.token_count > 3:
            raise torch.OutOfMemoryError

    plain = rig(0)
    tight = rig(5)
    tight.runner._before = before
    streams: list[Command] = [submission(number, (number, 2), 60) for number in range(3)]
    plain.run(streams)
    tight.run(streams)
    assert tight.tokens == plain.tokens


def test_a_grammar_is_kept_among_guesses() -> None:
    guessing = rig(4)
    stream: Submission = submission(
        1,
        (1, 2),
        80,
        constraint=Constraint("regex", "(ab){20,30}c"),
        sampling=Sampling(1.0, seed=4),
        stop_ids=BYTES_ENDS,
    )
    guessing.run([stream])
    assert text_of(guessing.tokens[1]).replace("ab", "") == "c"
    assert sum(output.stats.accepted_tokens for output in guessing.outputs) > 0
