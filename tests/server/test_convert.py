"""Messages to domain values and back."""

from coldplate.durations import to_duration, to_seconds
from coldplate.v1 import generation_pb2 as pb
from coldplate_server.events import ChoiceFinished, Completed, Delta, Event, PromptLogprobs
from coldplate_server.request import (
    ChatMessage,
    Constraint,
    Conversation,
    FallbackPolicy,
    GenerationRequest,
    Priority,
    Reasoning,
    SamplingParams,
    StopRules,
)
from coldplate_server.result import ChoiceEnd, FinishReason, Timings, TokenLogprob, Usage
from coldplate_server.rpc import convert
from coldplate_server.rpc.gather import Gathering


def test_a_text_alone_gets_every_default() -> None:
    request = convert.generation_request(pb.GenerateRequest(text="hi"), request_id="made")
    assert request == GenerationRequest(request_id="made", model="", prompt="hi")


def test_each_request_without_an_id_gets_its_own() -> None:
    first, second = (convert.generation_request(pb.GenerateRequest(text="hi")).request_id for _ in range(2))
    assert first
    assert first != second


def test_every_field_arrives() -> None:
    message = pb.GenerateRequest(
        request_id="r",
        model="m",
        token_ids=pb.TokenIds(ids=[1, 2]),
        sampling=pb.Sampling(
            temperature=0,
            top_p=0.5,
            top_k=3,
            min_p=0.25,
            seed=2**64 - 1,
            n=3,
            repetition_penalty=1.5,
            presence_penalty=-1,
            frequency_penalty=0.5,
            logit_bias={7: -100},
        ),
        stopping=pb.Stopping(
            max_tokens=9, min_tokens=2, stop_sequences=["a", "b"], stop_token_ids=[7], ignore_end_of_text=True
        ),
        reporting=pb.Reporting(text=False, token_ids=True, special_tokens=True, logprobs=0, prompt_logprobs=5),
        choices=pb.Choices(texts=["a", "b"]),
        reasoning=pb.Reasoning(enabled=False, budget_tokens=0),
        scheduling=pb.Scheduling(priority=pb.PRIORITY_LOW, queue_timeout=to_duration(1.5)),
        fallback=pb.FALLBACK_NEVER,
    )
    assert convert.generation_request(message) == GenerationRequest(
        request_id="r",
        model="m",
        prompt=(1, 2),
        sampling=SamplingParams(0.0, 0.5, 3, 0.25, 2**64 - 1, 1.5, -1.0, 0.5, {7: -100.0}),
        n=3,
        max_tokens=9,
        stop=StopRules(("a", "b"), frozenset({7}), True, 2),
        logprobs=0,
        prompt_logprobs=5,
        constraint=Constraint("choices", ("a", "b")),
        reasoning=Reasoning(False, 0),
        want_text=False,
        want_token_ids=True,
        special_tokens=True,
        priority=Priority.LOW,
        queue_timeout_s=1.5,
        fallback=FallbackPolicy.NEVER,
    )


def test_a_resumed_request_keeps_its_seed_and_tokens() -> None:
    message = pb.GenerateRequest(text="hi", resume=pb.Resume(emitted_token_ids=[5, 6], seed=0))
    request = convert.generation_request(message)
    assert request.resume_ids == (5, 6)
    assert request.sampling.seed == 0


def test_parts_of_a_message_are_joined_as_they_stand() -> None:
    parts = pb.Message(role="assistant", parts=[pb.Part(text="1,"), pb.Part(text=" 2,")])
    whole = pb.Message(role="assistant", text="1, 2,")
    conversation = convert.conversation(pb.Conversation(messages=[parts, whole], continue_final_message=True))
    assert conversation == Conversation((ChatMessage("assistant", "1, 2,"),) * 2, continue_final_message=True)


def test_stream_options_default_to_none() -> None:
    assert convert.stream_options(pb.StreamOptions()) == convert.StreamOptions(0.0, 0.0)
    options = pb.StreamOptions(flush_interval=to_duration(0.25), progress_interval=to_duration(2))
    assert convert.stream_options(options) == convert.StreamOptions(0.25, 2.0)


def test_every_finish_reason_has_its_own_message_value() -> None:
    values = {convert.finish_reason(reason) for reason in FinishReason}
    assert values == set(pb.FinishReason.values()) - {pb.FINISH_REASON_UNSPECIFIED}
    assert all(pb.FinishReason.Name(convert.finish_reason(r)) == f"FINISH_REASON_{r.name}" for r in FinishReason)


def test_usage_and_timings() -> None:
    assert convert.usage(Usage(1, 2, 3, 4)) == pb.Usage(
        prompt_tokens=1, completion_tokens=2, cached_tokens=3, reasoning_tokens=4
    )
    timings = convert.timings(Timings(1, 2, 3, 4, 0.5, 6, 7))
    fields = [field.name for field in pb.Timings.DESCRIPTOR.fields]
    assert [to_seconds(getattr(timings, name)) for name in fields] == [1, 2, 3, 4, 0.5, 6, 7]


def test_events_become_messages_and_one_answer() -> None:
    logprob = TokenLogprob(5, -0.5, ((5, -0.5), (6, -1.5)))
    events: list[Event] = [
        PromptLogprobs(1, [logprob]),
        Delta(1, 0, 1, "b", "", [5], [logprob]),
        Delta(0, 0, 2, "", "hm", [7, 8], []),
        ChoiceFinished(1, ChoiceEnd(FinishReason.STOP_SEQUENCE, stop_sequence="x")),
        Delta(0, 2, 1, "a", "", [9], []),
        ChoiceFinished(0, ChoiceEnd(FinishReason.END_OF_TEXT)),
        Completed((FinishReason.END_OF_TEXT, FinishReason.STOP_SEQUENCE), Usage(3, 4), Timings(), "cpu"),
    ]
    answer = Gathering(2)
    for event in events:
        answer.add(event)
    response = answer.response()
    first, second = response.choices
    assert (first.index, first.text, first.reasoning_text, list(first.token_ids)) == (0, "a", "hm", [7, 8, 9])
    assert (second.index, second.text, second.stop_sequence) == (1, "b", "x")
    assert [other.token_id for other in second.logprobs[0].alternatives] == [5, 6]
    assert response.prompt_logprobs[0] == second.logprobs[0]
    assert (response.device, response.usage.prompt_tokens, response.usage.completion_tokens) == ("cpu", 3, 4)
    kinds = [convert.stream_response(event).WhichOneof("event") for event in events]
    assert kinds == ["prompt_logprobs", "delta", "delta", "choice_finished", "delta", "choice_finished", "completed"]
