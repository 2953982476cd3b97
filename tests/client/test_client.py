"""The synchronous client against a server with canned answers."""

from typing import Any

import grpc
import pytest

from client.fake_server import FakeServer
from coldplate.v1 import generation_pb2
from coldplate_client import (
    Aborted,
    AlreadyExists,
    Answer,
    Cancelled,
    ChoiceFinished,
    Client,
    ColdplateError,
    Completed,
    DeadlineExceeded,
    Delta,
    FailedPrecondition,
    FinishReason,
    IncompleteAnswer,
    InvalidRequest,
    Message,
    Migrated,
    NotFound,
    Overloaded,
    Phase,
    Priority,
    Progress,
    Resume,
    ResumeLevel,
    ServiceFault,
    Started,
    TokenLogprob,
    Unavailable,
    Unimplemented,
    Violation,
)


def test_generate_returns_the_whole_answer(client: Client) -> None:
    answer = client.generate("say 中文", request_id="r1")
    assert (answer.text, answer.token_ids) == ("中文", (0x4E2D, 0x6587))
    assert (answer.finish_reason, answer.device, answer.seed, answer.request_id) == (
        FinishReason.END_OF_TEXT,
        "cpu",
        7,
        "r1",
    )
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 2)
    assert (answer.timings.first_token_s, answer.timings.total_s) == (0.25, 1.5)


def test_every_option_reaches_the_request(client: Client, server: FakeServer) -> None:
    client.generate(
        "say x",
        model="demo",
        max_tokens=0,
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        min_p=0.25,
        seed=2**53 + 1,
        n=2,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        frequency_penalty=0.5,
        logit_bias={7: -100.0},
        min_tokens=1,
        logprobs=0,
        prompt_logprobs=3,
        json_schema={"type": "integer"},
        reasoning=False,
        reasoning_budget_tokens=0,
        stop="END",
        stop_token_ids=[9],
        ignore_end_of_text=True,
        special_tokens=True,
        priority=Priority.HIGH,
        fallback="never",
        queue_timeout_s=1.5,
        resume=Resume((1, 2), seed=5),
        timeout_s=20,
    )
    (request,) = server.seen.requests
    assert request == generation_pb2.GenerateRequest(
        model="demo",
        text="say x",
        sampling=generation_pb2.Sampling(
            temperature=0.0,
            top_p=0.5,
            top_k=3,
            min_p=0.25,
            seed=2**53 + 1,
            n=2,
            repetition_penalty=1.5,
            presence_penalty=-1.0,
            frequency_penalty=0.5,
            logit_bias={7: -100.0},
        ),
        json_schema='{"type": "integer"}',
        reasoning=generation_pb2.Reasoning(enabled=False, budget_tokens=0),
        stopping=generation_pb2.Stopping(
            max_tokens=0, min_tokens=1, stop_sequences=["END"], stop_token_ids=[9], ignore_end_of_text=True
        ),
        reporting=generation_pb2.Reporting(token_ids=True, special_tokens=True, logprobs=0, prompt_logprobs=3),
        scheduling=generation_pb2.Scheduling(
            priority=generation_pb2.PRIORITY_HIGH, queue_timeout={"seconds": 1, "nanos": 500_000_000}
        ),
        fallback=generation_pb2.FALLBACK_NEVER,
        resume=generation_pb2.Resume(emitted_token_ids=[1, 2], seed=5),
    )
    (remaining,) = server.seen.time_remaining_s
    assert remaining is not None
    assert 15 < remaining <= 20.1  # gRPC sends a span above 10 s in tenths, rounded up


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"regex": "a+"}, "regex", "a+"),
        ({"grammar": "start: /a/"}, "grammar", "start: /a/"),
        ({"json_schema": '{"enum": [1]}'}, "json_schema", '{"enum": [1]}'),
        ({"choices": ["a", "b"]}, "choices", generation_pb2.Choices(texts=["a", "b"])),
    ],
)
def test_each_constraint_reaches_the_request(
    client: Client, server: FakeServer, options: dict[str, Any], kind: str, text: object
) -> None:
    client.generate("say x", **options)
    (request,) = server.seen.requests
    assert request.WhichOneof("constraint") == kind
    assert getattr(request, kind) == text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"regex": "a", "choices": ["a"]}, "regex and choices"),
        ({"choices": "yes"}, "choices: expected a list"),
        ({"json_schema": {"a": float("nan")}}, "json_schema"),
        ({"regex": "\ud800"}, "regex: .*surrogate"),
        ({"logit_bias": {2**40: 1.0}}, "logit_bias is"),
        ({"logprobs": 2**40}, "logprobs is"),
    ],
)
def test_a_constraint_or_count_that_cannot_be_sent_is_named(
    client: Client, options: dict[str, Any], words: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        client.generate("say x", **options)


def test_choices_log_probabilities_and_thinking_are_the_same_streamed_and_not(client: Client) -> None:
    whole = client.generate("think ab", n=2, logprobs=1, prompt_logprobs=1)
    with client.stream("think ab", n=2, logprobs=1, prompt_logprobs=1) as stream:
        assert "".join(stream.texts()) == "ab"
    joined = stream.partial
    known = tuple(TokenLogprob(token, -0.5, ((9, -2.0),)) for token in b"ab")
    for answer in (whole, joined):
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert [choice.text for choice in answer.choices] == ["ab", "ab"]
        assert answer.logprobs == answer.choices[1].logprobs == known
        assert answer.prompt_logprobs == (TokenLogprob(5, -0.5, ((9, -2.0),)),)
        assert answer.reasoning_text == "hm"
    assert joined.choices[1].finish_reason is FinishReason.STOP_SEQUENCE


def test_what_is_not_given_is_not_sent(client: Client, server: FakeServer) -> None:
    client.generate("say x")
    (request,) = server.seen.requests
    assert not request.sampling.HasField("temperature")
    assert not request.stopping.HasField("max_tokens")
    assert server.seen.time_remaining_s == [None]


def test_prompts_may_be_token_ids_or_messages(client: Client, server: FakeServer) -> None:
    client.generate([1, 2, 3])
    client.chat([{"role": "system", "content": "s"}, Message("user", "say hello")])
    ids, chat = server.seen.requests
    assert list(ids.token_ids.ids) == [1, 2, 3]
    assert [(message.role, message.text) for message in chat.conversation.messages] == [
        ("system", "s"),
        ("user", "say hello"),
    ]


@pytest.mark.parametrize("prompt", [[], ["a"], [1, "a"], [Message("user", "a"), 1], 5])
def test_a_prompt_of_no_known_kind_is_refused(client: Client, prompt: object) -> None:
    with pytest.raises(TypeError, match=r"prompt|iterable"):
        client.generate(prompt)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"prompt": "a\ud800b"}, "prompt"),
        ({"prompt": "a", "stop": ["ok", "\udfff"]}, r"stop\[1\]"),
        ({"prompt": "a", "model": "\ud800"}, "model"),
        ({"prompt": [{"role": "user", "text": "\ud800"}]}, r"messages\[0\]\.text"),
        ({"prompt": "a", "request_id": "\ud800"}, "request_id"),
    ],
)
def test_lone_surrogates_are_named(client: Client, server: FakeServer, arguments: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: .*lone surrogate"):
        client.generate(**arguments)  # type: ignore[arg-type]
    assert not server.seen.requests


def test_a_request_too_large_to_send_is_refused_with_the_limit(client: Client) -> None:
    with pytest.raises(ValueError, match="at most 16777216"):
        client.generate("x" * (16 * 1024 * 1024))


def test_unknown_message_keys_and_options_are_refused(client: Client) -> None:
    with pytest.raises(ValueError, match=r"messages\[0\]"):
        client.chat([{"role": "user", "txt": "a"}])
    with pytest.raises(TypeError, match="temprature"):
        client.generate("a", temprature=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="queue_timeout_s"):
        client.generate("a", queue_timeout_s=float("nan"))


def test_a_stream_yields_typed_events_in_order(client: Client) -> None:
    with client.stream("say hi.", request_id="r2") as stream:
        events = list(stream)
    assert isinstance(events[0], Started)
    assert (events[0].request_id, events[0].device) == ("r2", "npu:0")
    assert events[1] == Progress(Phase.QUEUED, queue_position=1, throttled=False)
    assert events[2] == Delta("h", (104,), choice_index=0, first_token_index=0, token_count=1)
    assert events[-2] == ChoiceFinished(0, FinishReason.STOP_SEQUENCE, stop_sequence=".", stop_token_id=None)
    assert isinstance(events[-1], Completed)


def test_stream_helpers_join_the_text(client: Client) -> None:
    with client.stream("say hello") as stream:
        assert stream.text() == "hello"
    with client.stream("say hello") as stream:
        assert list(stream.texts()) == list("hello")
    with client.stream("move on") as stream:
        answer = stream.answer()
    assert (answer.text, answer.device) == ("on", "cpu")
    assert answer.migrated == Migrated("npu:0", "cpu", ResumeLevel.CONTINUOUS, at_token_index=2)
    assert answer.resume(Resume((1,), seed=7)) == Resume((1, *map(ord, "on")), seed=7)


def test_leaving_the_block_cancels_the_call(client: Client, server: FakeServer) -> None:
    with client.stream("hang") as stream:
        for event in stream:
            if isinstance(event, Delta):
                break
        assert not server.seen.ended.is_set()
    assert server.seen.ended.wait(5)
    assert stream.partial.text == "x"
    assert stream.partial.finish_reason is None


def test_an_exception_in_the_block_cancels_the_call(client: Client, server: FakeServer) -> None:
    with pytest.raises(ZeroDivisionError), client.stream("hang") as stream:
        _ = 1 / (next(stream) is None)
    assert server.seen.ended.wait(5)


def test_reading_a_cancelled_stream_raises_cancelled(client: Client) -> None:
    with client.stream("hang") as stream:
        next(stream)
        stream.cancel()
        with pytest.raises(Cancelled):
            stream.answer()


def test_a_stream_is_not_read_outside_its_block(client: Client) -> None:
    with pytest.raises(RuntimeError, match="with block"):
        next(client.stream("say hi"))


def test_a_stream_without_its_last_event_is_no_answer(client: Client) -> None:
    with client.stream("half") as stream, pytest.raises(IncompleteAnswer) as caught:
        stream.answer()
    assert caught.value.partial is not None
    assert (caught.value.partial.text, caught.value.partial.finish_reason) == ("ab", None)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INVALID_ARGUMENT", InvalidRequest),
        ("OUT_OF_RANGE", InvalidRequest),
        ("NOT_FOUND", NotFound),
        ("ALREADY_EXISTS", AlreadyExists),
        ("FAILED_PRECONDITION", FailedPrecondition),
        ("RESOURCE_EXHAUSTED", Overloaded),
        ("UNAVAILABLE", Unavailable),
        ("DEADLINE_EXCEEDED", DeadlineExceeded),
        ("ABORTED", Aborted),
        ("UNIMPLEMENTED", Unimplemented),
        ("CANCELLED", Cancelled),
        ("INTERNAL", ServiceFault),
    ],
)
def test_statuses_become_typed_errors_with_their_details(client: Client, code: str, kind: type[ColdplateError]) -> None:
    with pytest.raises(kind, match=f"told {code}") as caught:
        client.generate(f"fail {code}")
    error = caught.value
    assert type(error) is kind
    assert (error.code, error.reason, error.retry_after_s) == (grpc.StatusCode[code], "TEST", 1.5)
    assert error.violations == (Violation("sampling.top_p", "too big"),)
    if isinstance(error, Unimplemented):
        assert error.feature == "n"


def test_an_error_in_mid_stream_keeps_what_came(client: Client) -> None:
    with client.stream("cut ABORTED") as stream, pytest.raises(Aborted) as caught:
        stream.answer()
    assert caught.value.delivered == 2
    partial = caught.value.partial
    assert partial is not None
    assert (partial.text, partial.resume()) == ("ab", Resume((97, 98), seed=7))


def test_the_deadline_is_the_calls_own(client: Client) -> None:
    with client.stream("hang", timeout_s=0.3) as stream, pytest.raises(DeadlineExceeded) as caught:
        stream.answer()
    assert isinstance(caught.value.partial, Answer)
    assert caught.value.partial.text == "x"


def test_refusals_before_the_first_message_are_retried(client: Client, server: FakeServer) -> None:
    server.refuse_first = 2
    assert client.generate("say ok").text == "ok"
    assert server.seen.attempts == 3


def test_without_retries_the_first_refusal_counts(server: FakeServer) -> None:
    server.refuse_first = 1
    with Client(server.target, retries=False) as client, pytest.raises(Unavailable, match="loading"):
        client.generate("say ok")
    assert server.seen.attempts == 1


def test_a_started_stream_is_never_repeated(client: Client, server: FakeServer) -> None:
    with client.stream("cut UNAVAILABLE") as stream, pytest.raises(Unavailable):
        stream.answer()
    assert server.seen.attempts == 1


def test_token_and_status_calls(client: Client) -> None:
    assert client.tokenize("ab") == [97, 98]
    assert client.detokenize([97, 98]) == "ab"
    assert (client.count_tokens("abc").tokens, client.count_tokens("abc").context_left) == (3, 100)
    assert [model.name for model in client.models()] == ["demo"]
    assert [device.device for device in client.status().devices] == ["npu:0", "cpu"]
    assert client.load().accepting
    assert client.health("coldplate.v1.GenerationService")
    with pytest.raises(NotFound):
        client.health("nope")


def test_watching_the_status_ends_with_its_block(client: Client, server: FakeServer) -> None:
    with client.watch_status(min_interval_s=0.1) as updates:
        first, second = next(updates), next(updates)
        assert second.queued == first.queued + 1
    assert server.seen.ended.wait(5)


def test_nothing_listening_is_unavailable() -> None:
    with Client("127.0.0.1:1", retries=False) as client, pytest.raises(Unavailable):
        client.status()
