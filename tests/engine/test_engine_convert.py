"""Engine messages to and from protobuf."""

from coldplate.internal.v1 import engine_pb2 as pb
from coldplate.v1 import generation_pb2
from coldplate_engine.convert import command_from_proto, step_to_proto
from coldplate_engine.messages import (
    Admitted,
    Constraint,
    Credit,
    EngineError,
    Finished,
    PromptLogprobs,
    Sampling,
    StepOutput,
    StepStats,
    StopCause,
    Submission,
    Thinking,
    TokenLogprob,
)


def test_a_submission_with_everything() -> None:
    submit = pb.Submit(
        stream=7,
        request_id="r",
        prompt_token_ids=[1, 2],
        emitted_token_ids=[3],
        sampling=pb.SamplingParams(
            temperature=0.5,
            top_p=0.25,
            top_k=9,
            min_p=0.125,
            seed=11,
            repetition_penalty=1.5,
            presence_penalty=-1,
            frequency_penalty=2,
            logit_bias={5: -100, 2: 1},
        ),
        max_tokens=20,
        stop_token_ids=[9, 8],
        priority=3,
        deadline_ms=1500,
        sibling_of=4,
        constraint=pb.Constraint(choices=generation_pb2.Choices(texts=["a", "b"])),
        min_tokens=2,
        logprobs=0,
        prompt_logprobs=3,
        thinking=pb.Thinking(start_token_id=4, end_token_id=5, open=True, budget_tokens=0, close_token_ids=[6, 5]),
        cache_salt="tenant",
    )
    assert command_from_proto(pb.RunRequest(submit=submit)) == Submission(
        stream=7,
        request_id="r",
        prompt_ids=(1, 2),
        emitted_ids=(3,),
        sampling=Sampling(0.5, 0.25, 9, 0.125, 11, 1.5, -1, 2, ((2, 1.0), (5, -100.0))),
        max_tokens=20,
        stop_ids=frozenset({8, 9}),
        priority=3,
        deadline_s=1.5,
        sibling_of=4,
        constraint=Constraint("choices", choices=("a", "b")),
        min_tokens=2,
        logprobs=0,
        prompt_logprobs=3,
        thinking=Thinking(4, 5, True, 0, (6, 5)),
        cache_salt="tenant",
    )


def test_a_submission_with_nothing_beyond_the_prompt() -> None:
    command = command_from_proto(pb.RunRequest(submit=pb.Submit(stream=1, prompt_token_ids=[1], max_tokens=2)))
    assert command == Submission(1, (1,), 2, priority=0, sampling=Sampling(top_p=0.0))
    assert not command.sampling.penalises


def test_each_kind_of_constraint() -> None:
    cases = [
        (pb.Constraint(json_schema="x"), Constraint("json_schema", "x")),
        (pb.Constraint(regex="x"), Constraint("regex", "x")),
        (pb.Constraint(grammar="x"), Constraint("grammar", "x")),
        (pb.Constraint(), Constraint("grammar", "")),
    ]
    for message, constraint in cases:
        command = command_from_proto(pb.RunRequest(submit=pb.Submit(constraint=message)))
        assert isinstance(command, Submission)
        assert command.constraint == constraint


def test_a_step_with_everything() -> None:
    output = StepOutput(
        number=3,
        streams=[7, 7],
        token_ids=[1, 2],
        finished=[Finished(7, StopCause.ERROR, error=EngineError.BAD_CONSTRAINT, error_text="no")],
        admitted=[Admitted(8, 64)],
        credit=Credit(1, 2, 3),
        limits_seq=4,
        stats=StepStats(preempted=1, preempted_tokens=2, cached_tokens=3, offloaded_tokens=4, kv_blocks_cached=5),
        logprobs=[(1, TokenLogprob(2, -0.5, ((2, -0.5), (1, -2.0))))],
        prompt_logprobs=[PromptLogprobs(8, 1, [TokenLogprob(4, -1.0)])],
    )
    output.stats.draft_tokens, output.stats.accepted_tokens = 6, 5
    step = step_to_proto(output).step
    assert step.finished[0].error == pb.ENGINE_ERROR_BAD_CONSTRAINT
    assert (step.admitted[0].stream, step.admitted[0].cached_tokens) == (8, 64)
    stats = step.stats
    assert (stats.preempted, stats.preempted_tokens, stats.cached_tokens, stats.offloaded_tokens) == (1, 2, 3, 4)
    assert (stats.kv_blocks_cached, stats.draft_tokens, stats.accepted_tokens) == (5, 6, 5)
    entry = step.logprobs[0]
    assert (entry.index, entry.logprob.token_id, entry.logprob.logprob) == (1, 2, -0.5)
    assert [(item.token_id, item.logprob) for item in entry.logprob.alternatives] == [(2, -0.5), (1, -2.0)]
    assert (step.prompt_logprobs[0].stream, step.prompt_logprobs[0].first) == (8, 1)
    assert step.prompt_logprobs[0].logprobs[0].token_id == 4
