"""Penalties, log-probabilities, thinking and constraints through the step loop, over a random model."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate.limits import Limits
from coldplate_engine.messages import (
    Cancel,
    Command,
    Constraint,
    EngineError,
    Sampling,
    SetLimits,
    StopCause,
    Submission,
    Thinking,
)
from coldplate_engine.penalties import TokenCounts
from coldplate_engine.sampler import SampleRow, sample
from support.engine_loop import LoopRig, submission
from support.fake_runner import FakeRunner
from support.random_model import BYTES_ENDS, CompileAtOnce, random_logits, random_runner, text_of
from support.tokenizers import END_OF_TEXT_ID

RULES = CompileAtOnce()
PROMPT = (1, 2, 3)
SAMPLED = Sampling(temperature=1.0, seed=5)


def rig(**options: Any) -> LoopRig:
    options = dict[str, Any](runner=random_runner(), num_blocks=256, max_model_len=250) | options
    return LoopRig(constraints=RULES, end_of_text=BYTES_ENDS, **options)


def alone(stream: Submission, **options: Any) -> LoopRig:
    made = rig(**options)
    made.run([stream])
    return made


def expected(stream: Submission) -> list[int]:
    """The tokens of a stream with penalties, bias and stops, one by one from their definitions."""
    tokens, counts = list(stream.prompt_ids), TokenCounts(stream.prompt_ids)
    for position in range(stream.max_tokens):
        row = random_logits(tokens).numpy().copy()
        for token, bias in stream.sampling.logit_bias:
            row[token] += np.float32(bias)
        counts.advance(tokens)
        counts.apply(row, stream.sampling)
        if position < stream.min_tokens:
            row[list(stream.stop_ids)] = -np.inf
        (chosen,) = sample(torch.from_numpy(row).unsqueeze(0), [SampleRow(stream.sampling, position)])
        assert chosen is not None
        token = chosen
        if token in stream.stop_ids:
            break
        tokens.append(token)
    return tokens[len(stream.prompt_ids) :]


RULED = st.builds(
    lambda number, sampling, stops, least: submission(
        number, (number, 2, 3), 8, sampling=sampling, stop_ids=frozenset(stops), min_tokens=least
    ),
    st.integers(1, 20),
    st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.9]),
        seed=st.integers(0, 99),
        repetition_penalty=st.sampled_from([1.0, 1.4]),
        presence_penalty=st.sampled_from([0.0, 1.5]),
        frequency_penalty=st.sampled_from([0.0, -0.5]),
        logit_bias=st.sampled_from([(), ((7, 6.0),), ((7, -100.0), (260, 7.5))]),
    ),
    st.sets(st.integers(0, 260), max_size=60),
    st.integers(0, 8),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(RULED, min_size=1, max_size=5, unique_by=lambda stream: stream.stream), st.integers(0, 7))
def test_any_mix_of_rules_gives_each_stream_what_it_gets_alone_and_after_a_resume(
    streams: list[Submission], cut: int
) -> None:
    together = rig(max_num_batched_tokens=9)
    script: list[list[Command]] = [[stream] for stream in streams]
    together.run(*script)
    for stream in streams:
        answer = expected(stream)
        assert together.tokens.get(stream.stream, []) == answer
        if cut < len(answer):
            resumed = submission(
                1,
                stream.prompt_ids,
                8,
                emitted_ids=tuple(answer[:cut]),
                sampling=stream.sampling,
                stop_ids=stream.stop_ids,
                min_tokens=stream.min_tokens,
            )
            assert alone(resumed).tokens.get(1, []) == answer[cut:]


def test_logprobs_are_the_models_own_whatever_the_sampling() -> None:
    sampling = Sampling(temperature=0.7, seed=3, repetition_penalty=1.5, logit_bias=((9, 5.0),))
    made = rig()
    made.run([submission(1, PROMPT, 6, sampling=sampling, logprobs=2), submission(2, PROMPT, 6)])
    tokens = made.tokens[1]
    assert len(made.logprobs_of(1)) == 6
    assert made.logprobs_of(2) == []
    for at, item in enumerate(made.logprobs_of(1)):
        row = random_logits([*PROMPT, *tokens[:at]]).double().log_softmax(dim=0)
        assert item.token_id == tokens[at]
        assert item.logprob == pytest.approx(float(row[tokens[at]]), abs=1e-4)
        assert [token for token, _ in item.alternatives] == row.topk(2).indices.tolist()


@pytest.mark.parametrize("chunk", [4, 7, 64])
def test_prompt_logprobs_come_once_for_each_position_over_chunks(chunk: int) -> None:
    prompt = tuple(range(40, 63))
    made = rig(max_num_batched_tokens=chunk, max_num_seqs=2)
    made.run([submission(1, prompt, 3, prompt_logprobs=1), submission(2, prompt, 3)])
    parts = [part for output in made.outputs for part in output.prompt_logprobs]
    assert {part.stream for part in parts} == {1}
    positions = [part.first + i for part in parts for i in range(len(part.logprobs))]
    assert positions == list(range(1, 23))
    for position, item in zip(positions, (item for part in parts for item in part.logprobs), strict=True):
        row = random_logits(prompt[:position]).double().log_softmax(dim=0)
        assert item.token_id == prompt[position]
        assert item.logprob == pytest.approx(float(row[prompt[position]]), abs=1e-4)
        assert item.alternatives[0][0] == int(row.argmax())
    assert made.tokens[1] == made.tokens[2]


def test_the_logits_of_one_call_are_bounded() -> None:
    made = rig(max_num_batched_tokens=128, max_rows=5)
    made.run([submission(1, range(60), 2, prompt_logprobs=0), submission(2, range(60), 2)])
    assert max(batch.logit_rows for batch in made.runner.calls) == 5
    assert sum(len(part.logprobs) for output in made.outputs for part in output.prompt_logprobs) == 59


def check_value(schema: dict[str, Any], value: Any) -> None:
    if "enum" in schema:
        assert value in schema["enum"]
    elif schema["type"] == "object":
        assert set(value) == set(schema["properties"])
        for name, part in schema["properties"].items():
            check_value(part, value[name])
    elif schema["type"] == "array":
        assert len(value) <= schema["maxItems"]
        for item in value:
            check_value(schema["items"], item)
    elif schema["type"] == "integer":
        assert schema["minimum"] <= value <= schema["maximum"]
        assert isinstance(value, int)
    else:
        assert isinstance(value, str)
        assert len(value) <= schema["maxLength"]


SCHEMAS = st.recursive(
    st.one_of(
        st.just({"type": "integer", "minimum": -5, "maximum": 120}),
        st.just({"enum": ["red", 'a "b"', 7, None, True]}),
        st.just({"type": "string", "maxLength": 5}),
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner),
        st.builds(
            lambda parts: {
                "type": "object",
                "properties": parts,
                "required": list(parts),
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, min_size=1, max_size=3),
        ),
    ),
    max_leaves=4,
)


@settings(max_examples=25, deadline=None)
@given(SCHEMAS, st.integers(0, 99), st.booleans())
def test_a_random_model_keeps_to_the_schema_beside_others(schema: dict[str, Any], seed: int, penalised: bool) -> None:
    # Whitespace between JSON's tokens is allowed, and a random model likes it.
    bias = tuple((ord(sign), -50.0) for sign in " \n\r\t")
    sampling = Sampling(1.0, seed=seed, logit_bias=bias, presence_penalty=float(penalised))
    constraint = Constraint("json_schema", json.dumps(schema))
    made = rig(max_model_len=2000, num_blocks=1024)
    made.run(
        [
            submission(1, PROMPT, 1500, sampling=sampling, constraint=constraint, stop_ids=BYTES_ENDS),
            submission(2, PROMPT, 20, sampling=SAMPLED),
        ]
    )
    assert made.finished[1].cause is StopCause.STOP_TOKEN
    assert made.finished[1].stop_token_id == END_OF_TEXT_ID
    check_value(schema, json.loads(text_of(made.tokens[1])))
    assert made.tokens[2] == alone(submission(2, PROMPT, 20, sampling=SAMPLED)).tokens[2]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.integers(1, 30))
def test_a_constrained_stream_goes_on_from_its_tokens(seed: int, cut: int) -> None:
    options: dict[str, Any] = {
        "constraint": Constraint("regex", "(ab?c|[0-9]{2,5}x){3,9}"),
        "sampling": Sampling(1.0, seed=seed),
        "stop_ids": BYTES_ENDS,
    }
    whole = alone(submission(1, PROMPT, 40, **options)).tokens[1]
    cut = min(cut, len(whole))
    resumed = alone(submission(1, PROMPT, 40, emitted_ids=tuple(whole[:cut]), **options))
    assert whole[:cut] + resumed.tokens.get(1, []) == whole
    assert resumed.finished[1].cause in (StopCause.STOP_TOKEN, StopCause.MAX_TOKENS)


def test_a_bad_constraint_fails_its_stream_alone_and_says_why() -> None:
    made = rig()
    made.run(
        [
            submission(1, PROMPT, 5, constraint=Constraint("regex", "[0-9")),
            submission(2, PROMPT, 5, constraint=Constraint("choices", choices=("yes", "no"))),
        ]
    )
    assert made.finished[1].error is EngineError.BAD_CONSTRAINT
    assert "unclosed" in made.finished[1].error_text
    assert text_of(made.tokens[2]) in ("yes", "no")
    assert made.pool.used == 0


def test_a_worker_without_a_tokenizer_says_so() -> None:
    made = LoopRig(runner=random_runner())
    made.run([submission(1, constraint=Constraint("regex", "a"))])
    assert made.finished[1].error is EngineError.UNSATISFIABLE


def test_a_model_that_gives_what_the_grammar_wants_no_chance_is_a_dead_end() -> None:
    def without_letters(tokens: list[int]) -> torch.Tensor:
        row = random_logits(tokens)
        row[[97, 98]] = -torch.inf
        return row

    made = rig(runner=FakeRunner(logits_of=without_letters, vocabulary=261))
    made.run([submission(1, PROMPT, 5, constraint=Constraint("regex", "[ab]{4}")), submission(2, PROMPT, 2)])
    assert len(made.tokens[2]) == 2
    assert made.finished[1].error is EngineError.BAD_CONSTRAINT
    assert "leave no token" in made.finished[1].error_text


def test_min_tokens_beyond_the_longest_answer_ends_with_the_answer() -> None:
    made = alone(submission(1, PROMPT, 9, min_tokens=8, constraint=Constraint("regex", "ab"), stop_ids=BYTES_ENDS))
    assert text_of(made.tokens[1]) == "ab"
    assert made.finished[1].stop_token_id == END_OF_TEXT_ID


def test_not_a_number_is_told_from_a_dead_end() -> None:
    def poisoned(tokens: list[int]) -> torch.Tensor:
        row = random_logits(tokens)
        if len(tokens) > 4:
            row[3] = torch.nan
        return row

    made = rig(runner=FakeRunner(logits_of=poisoned, vocabulary=261))
    made.run([submission(1, PROMPT, 9, constraint=Constraint("regex", "[ab]{8}"))])
    assert made.finished[1].error is EngineError.NON_FINITE_LOGITS


def test_cancelled_while_it_compiles_and_a_number_used_again() -> None:
    made = rig()
    constrained = submission(1, PROMPT, 5, constraint=Constraint("regex", "[0-9"))
    assert made.run([constrained, Cancel(1)], [submission(2, PROMPT, 3)]) == 0
    assert made.finished[1].cause is StopCause.CANCELLED
    assert len(made.tokens[2]) == 3


START, END = 250, 251
CLOSE = (65, END, 10)


@pytest.mark.parametrize("budget", [0, 3])
def test_a_spent_budget_closes_the_thinking_and_the_grammar_begins_behind_it(budget: int) -> None:
    thinking = Thinking(START, END, open=True, budget_tokens=budget, close_ids=CLOSE)
    options: dict[str, Any] = {
        "thinking": thinking,
        "constraint": Constraint("choices", choices=("yes", "no")),
        "sampling": SAMPLED,
        "stop_ids": BYTES_ENDS | {*range(100)},
        "logprobs": 0,
    }
    made = alone(submission(1, PROMPT, 20, **options))
    tokens = made.tokens[1]
    assert tuple(tokens[budget : budget + 3]) == CLOSE
    assert text_of(tokens[budget + 3 :]) in ("yes", "no")
    assert len(made.logprobs_of(1)) == len(tokens), "forced tokens have theirs, too"
    for cut in range(1, len(tokens)):
        resumed = alone(submission(1, PROMPT, 20, emitted_ids=tuple(tokens[:cut]), **options))
        assert resumed.tokens[1] == tokens[cut:]


def test_a_lowered_cap_closes_running_thoughts() -> None:
    made = rig()
    thinking = Thinking(START, END, open=True, close_ids=CLOSE)
    stream = submission(1, PROMPT, 30, thinking=thinking, sampling=SAMPLED)
    script: list[list[Command]] = [[stream], [], [], [], [], [SetLimits(1, Limits(max_reasoning_tokens=4))]]
    made.run(*script)
    assert tuple(made.tokens[1][5:8]) == CLOSE
    assert len(made.tokens[1]) == 30


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sampling": Sampling(repetition_penalty=0.0)}, "repetition_penalty is 0.0"),
        ({"sampling": Sampling(repetition_penalty=-1.0)}, "repetition_penalty is -1.0"),
        ({"sampling": Sampling(repetition_penalty=float("nan"))}, "repetition_penalty is nan"),
        ({"sampling": Sampling(presence_penalty=float("inf"))}, "presence_penalty is inf"),
        ({"sampling": Sampling(frequency_penalty=float("nan"))}, "frequency_penalty is nan"),
        ({"sampling": Sampling(logit_bias=((261, 1.0),))}, "token id 261 is outside the vocabulary of 261"),
        ({"sampling": Sampling(logit_bias=((-1, 1.0),))}, "token id -1 is outside"),
        ({"sampling": Sampling(logit_bias=((3, float("nan")),))}, "logit_bias of token 3 is nan"),
        ({"min_tokens": 10}, "min_tokens is 10: expected 0 to max_tokens, which is 4"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"logprobs": 1_000_000_000}, "logprobs is 1000000000: expected 0 to 20"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21"),
        ({"thinking": Thinking(1, 2, budget_tokens=1)}, "close_token_ids [] do not hold end_token_id 2"),
        ({"thinking": Thinking(1, 2, budget_tokens=-1, close_ids=(2,))}, "budget_tokens is -1"),
        ({"thinking": Thinking(1, 999)}, "token id 999 is outside"),
    ],
)
def test_unusable_rules_end_their_stream_alone(options: dict[str, Any], said: str) -> None:
    made = rig()
    made.run(
        [submission(1, **options), submission(2, PROMPT, 2), submission(3, sampling=Sampling(logit_bias=((260, 5.0),)))]
    )
    assert made.finished[1].error is EngineError.UNSATISFIABLE
    assert said in made.finished[1].error_text
    assert len(made.tokens[2]) == 2
    assert len(made.tokens[3]) == 4
