"""Submissions to vLLM's sampling parameters, and its outputs to messages of ours."""

from types import SimpleNamespace
from typing import Any

import pytest

from coldplate_engine.messages import (
    Admitted,
    Constraint,
    EngineError,
    Finished,
    Sampling,
    StopCause,
    Submission,
    Thinking,
)
from coldplate_engine.vllm_worker.board import CoreState
from coldplate_engine.vllm_worker.report import LiveStream, News, stats_between, sum_states
from coldplate_engine.vllm_worker.sampling import FEATURES, GUIDED, Unmappable, sampling_arguments

ALL = frozenset({*FEATURES, GUIDED})


def submission(**options: Any) -> Submission:
    return Submission(**{"stream": 1, "prompt_ids": (1, 2, 3), "max_tokens": 10, **options})


def test_every_parameter_is_mapped() -> None:
    sampling = Sampling(0.7, 0.9, 40, 0.05, 2**64 - 1, 1.2, 0.5, -0.5, ((7, 2.5),))
    wanted = submission(
        sampling=sampling, stop_ids=frozenset({9, 4}), min_tokens=3, logprobs=2, prompt_logprobs=0, max_tokens=12
    )
    assert sampling_arguments(wanted, ALL) == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "seed": 2**63 - 1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {7: 2.5},
        "max_tokens": 12,
        "min_tokens": 3,
        "stop_token_ids": [4, 9],
        "ignore_eos": True,
        "logprobs": 2,
        "prompt_logprobs": 0,
        "detokenize": False,
    }


def test_a_resumed_stream_has_left_what_it_has_not_made_yet() -> None:
    arguments = sampling_arguments(submission(emitted_ids=(5, 6), min_tokens=3), ALL)
    assert (arguments["max_tokens"], arguments["min_tokens"]) == (8, 1)


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (Constraint("json_schema", '{"type": "object"}'), {"json": '{"type": "object"}'}),
        (Constraint("regex", "a+"), {"regex": "a+"}),
        (Constraint("choices", choices=("a", "b")), {"choice": ["a", "b"]}),
        (Constraint("grammar", 'start: "a"'), {"grammar": 'start: "a"'}),
    ],
)
def test_constraints(constraint: Constraint, expected: dict[str, Any]) -> None:
    assert sampling_arguments(submission(constraint=constraint), ALL)["structured_outputs"] == expected


@pytest.mark.parametrize(
    ("options", "features", "said"),
    [
        ({"sampling": Sampling(temperature=0.005)}, ALL, "temperature"),
        ({"constraint": Constraint("regex", "a")}, frozenset(FEATURES), "constraint"),
        ({"constraint": Constraint("json_schema", "{")}, ALL, "json_schema"),
        ({"thinking": Thinking(1, 2, budget_tokens=3)}, ALL, "thinking"),
        ({"emitted_ids": (1,), "sampling": Sampling(presence_penalty=1)}, ALL, "presence_penalty"),
        ({"emitted_ids": (1,), "sampling": Sampling(frequency_penalty=1)}, ALL, "frequency_penalty"),
        ({"emitted_ids": (1,), "constraint": Constraint("regex", "a")}, ALL, "constraint"),
        ({"emitted_ids": (1,), "prompt_logprobs": 1}, ALL, "prompt_logprobs"),
    ],
)
def test_what_vllm_cannot_do_is_refused_by_name(options: dict[str, Any], features: frozenset[str], said: str) -> None:
    with pytest.raises(Unmappable, match=said):
        sampling_arguments(submission(**options), features)


def output(tokens: list[int], reason: str | None = None, stop: Any = None, **extra: Any) -> Any:
    completion = SimpleNamespace(
        token_ids=tokens, finish_reason=reason, stop_reason=stop, logprobs=extra.pop("logprobs", None)
    )
    return SimpleNamespace(
        outputs=[completion], num_cached_tokens=extra.pop("cached", 0), prompt_logprobs=None, **extra
    )


def test_deltas_become_one_message() -> None:
    news = News()
    one, two = LiveStream.start(submission(), 16), LiveStream.start(submission(stream=2, max_tokens=2), 16)
    assert news.take(one, output([7], cached=2)) is None
    assert news.take(two, output([8, 9], "length")) == Finished(2, StopCause.MAX_TOKENS)
    assert (news.streams, news.token_ids) == ([1, 2, 2], [7, 8, 9])
    assert news.admitted == [Admitted(1, 2), Admitted(2, 0)]
    assert news.cached_tokens == 2


@pytest.mark.parametrize(
    ("tokens", "reason", "stop", "expected", "told"),
    [
        ([5, 9], "stop", 9, Finished(1, StopCause.STOP_TOKEN, stop_token_id=9), [5]),
        ([5], "length", None, Finished(1, StopCause.CONTEXT_FULL), [5]),
        ([], "abort", None, Finished(1, StopCause.CANCELLED), []),
    ],
)
def test_ends(tokens: list[int], reason: str, stop: Any, expected: Finished, told: list[int]) -> None:
    news = News()
    assert news.take(LiveStream.start(submission(), 16), output(tokens, reason, stop)) == expected
    assert news.token_ids == told


def test_broken_logits_and_failed_constraints_have_errors_of_their_own() -> None:
    broken = News().take(LiveStream.start(submission(), 16), output([], "error", "non_finite_logits"))
    assert broken is not None
    assert broken.error is EngineError.NON_FINITE_LOGITS
    guided = LiveStream.start(submission(constraint=Constraint("regex", "a")), 16)
    refused = News().take(guided, output([], "error"))
    assert refused is not None
    assert refused.error is EngineError.BAD_CONSTRAINT


def test_logprobs_name_the_chosen_token_and_the_likeliest() -> None:
    ranked = {3: SimpleNamespace(logprob=-0.1), 7: SimpleNamespace(logprob=-2.0), 4: SimpleNamespace(logprob=-1.0)}
    news = News()
    news.take(LiveStream.start(submission(logprobs=2), 16), output([7], logprobs=[ranked]))
    [(index, value)] = news.logprobs
    assert (index, value.token_id, value.logprob) == (0, 7, -2.0)
    assert value.alternatives == ((3, -0.1), (4, -1.0))


def test_states_of_a_group_add_up_and_differences_are_what_steps_cost() -> None:
    one = CoreState(limits_seq=2, running=1, blocks_total=10, steps=5, decode_tokens=4, device_s=1.0)
    two = CoreState(limits_seq=3, running=2, blocks_total=10, steps=6, decode_tokens=8, device_s=2.0)
    both = sum_states([one, two])
    assert (both.limits_seq, both.running, both.blocks_total, both.device_s) == (2, 3, 20, 2.0)
    stats = stats_between(one, two, cached_tokens=3)
    assert (stats.decode_tokens, stats.cached_tokens, stats.seconds["device"]) == (4, 3, 1.0)
    assert stats_between(two, two, 0).seconds == {}
