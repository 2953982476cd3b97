"""Several answers to one prompt."""

import pytest

from coldplate.v1 import admin_pb2, admin_pb2_grpc
from coldplate_server.generation import SEED_STEP
from support.case_models import alphabet_answer
from support.client import StreamCall, request, stream, unary
from support.processes import Stack

SAMPLED = {"model": "chatty", "temperature": 0.8, "max_tokens": 12, "token_ids": True}


@pytest.mark.usefixtures("alive")
def test_each_choice_is_what_its_seed_gives_alone(service: Stack) -> None:
    outcome = stream(service, request("once upon a", seed=5, n=3, **SAMPLED))
    assert outcome.ok, outcome.message
    alone = [
        unary(service, request("once upon a", seed=(5 + index * SEED_STEP) % 2**64, **SAMPLED)) for index in range(3)
    ]
    assert [choice.text for choice in outcome.choices] == [other.text for other in alone]
    assert len({tuple(choice.token_ids) for choice in outcome.choices}) == 3
    assert sorted(end.choice_index for end in outcome.finishes) == [0, 1, 2]
    assert outcome.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert outcome.usage.completion_tokens == sum(other.usage.completion_tokens for other in alone)


@pytest.mark.usefixtures("alive")
def test_the_deltas_of_each_choice_joined_are_its_unary_text(service: Stack) -> None:
    message = request("hello there", seed=2**64 - 1, n=4, **SAMPLED)
    whole, joined = unary(service, message), stream(service, message)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    for one, other in zip(whole.choices, joined.choices, strict=True):
        assert (one.text, one.token_ids, one.finish_reason) == (other.text, other.token_ids, other.finish_reason)
    for index in range(4):
        expected = 0
        for delta in (delta for delta in joined.deltas if delta.choice_index == index):
            assert delta.first_token_index == expected
            expected += delta.token_count
        assert expected == len(whole.choices[index].token_ids)


@pytest.mark.usefixtures("slow_alive")
def test_more_choices_than_slots_wait_for_room(slow: Stack) -> None:
    outcome = stream(slow, request("x" * 10, n=7, max_tokens=3))
    assert outcome.ok, outcome.message
    assert [choice.text for choice in outcome.choices] == [alphabet_answer(10, 3)] * 7
    assert outcome.usage.completion_tokens == 21


@pytest.mark.usefixtures("slow_alive")
def test_more_choices_than_slots_and_queue_are_refused_whole(slow: Stack) -> None:
    outcome = unary(slow, request("x" * 10, n=40, max_tokens=3))
    assert (outcome.code.name, outcome.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")


@pytest.mark.usefixtures("slow_alive")
def test_a_cancel_ends_every_choice(slow: Stack) -> None:
    call = StreamCall(slow, request("x" * 10, n=5, max_tokens=200)).read_deltas(2)
    call.cancel()
    call.read_all()


@pytest.mark.usefixtures("slow_alive")
def test_a_deadline_ends_every_choice(slow: Stack) -> None:
    outcome = StreamCall(slow, request("x" * 10, n=5, max_tokens=200), timeout_s=0.5).read_all()
    assert outcome.code.name == "DEADLINE_EXCEEDED"
    assert not outcome.finishes


@pytest.mark.usefixtures("slow_alive")
def test_an_operators_abort_ends_every_choice(slow: Stack) -> None:
    call = StreamCall(slow, request("x" * 10, n=4, max_tokens=200, request_id="four")).read_deltas(1)
    admin = admin_pb2_grpc.AdminServiceStub(slow.control)
    assert list(admin.Abort(admin_pb2.AbortRequest(request_ids=["four"]), timeout=5).aborted) == ["four"]
    assert call.read_all().code.name == "ABORTED"
