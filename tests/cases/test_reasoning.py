"""A thinking model's thinking is told apart from its answer, and can be bounded."""

import pytest

from coldplate.v1 import admin_pb2, admin_pb2_grpc, device_pb2, generation_pb2
from support import case_models
from support.client import Outcome, both, chat, request, stream, unary
from support.processes import Stack
from support.tokenizers import END_THINK_ID, THINK_ID

pytestmark = pytest.mark.usefixtures("alive")


def ask(service: Stack, name: str, *, budget: int | None = None, **options: object) -> Outcome:
    """The thinker's script ``name``, streamed and unary."""
    message = request(case_models.thinker().scripts[name].prompt, model="thinker", token_ids=True, **options)
    if budget is not None:
        message.reasoning.budget_tokens = budget
    return both(service, message)


def test_thinking_is_no_part_of_the_answer(service: Stack) -> None:
    outcome = ask(service, "thinks", max_tokens=64)
    assert (outcome.reasoning, outcome.text, outcome.finish) == ("hm, hüm", "The answer.", "END_OF_TEXT")
    assert outcome.usage.reasoning_tokens == 1 + len("\nhm, hüm \n".encode()) + 1
    assert outcome.token_ids[: outcome.usage.reasoning_tokens][-1] == END_THINK_ID


def test_who_does_not_think_just_answers(service: Stack) -> None:
    outcome = ask(service, "answers", max_tokens=64)
    assert (outcome.reasoning, outcome.text, outcome.usage.reasoning_tokens) == ("", "At once.", 0)


def test_marks_inside_an_answer_begin_no_thinking(service: Stack) -> None:
    outcome = ask(service, "mark later", max_tokens=64)
    assert (outcome.reasoning, outcome.text) == ("", "abc")


def test_thinking_that_the_prompt_has_opened(service: Stack) -> None:
    prompt = [120] * (case_models.thinker().scripts["opened"].prompt_tokens - 2) + [THINK_ID, 10]
    outcome = both(service, request(prompt, model="thinker", max_tokens=64))
    assert (outcome.reasoning, outcome.text) == ("aha", "Yes.")


def test_an_answer_cut_while_it_thinks(service: Stack) -> None:
    outcome = ask(service, "thinks", max_tokens=6)
    assert (outcome.reasoning, outcome.text, outcome.finish) == ("hm,", "", "MAX_TOKENS")
    assert outcome.usage.reasoning_tokens == outcome.usage.completion_tokens == 6


@pytest.mark.parametrize(("stop", "text"), [("hm", "The answer."), ("answer", "The "), ("\n", "The answer.")])
def test_stop_sequences_are_for_the_answer_alone(service: Stack, stop: str, text: str) -> None:
    outcome = ask(service, "thinks", max_tokens=64, stop_sequences=[stop])
    assert (outcome.reasoning, outcome.text) == ("hm, hüm", text)


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_closes_the_thinking(service: Stack, budget: int) -> None:
    outcome = ask(service, "never ends", budget=budget, max_tokens=30)
    assert outcome.reasoning == "and so on"[:budget]
    assert outcome.token_ids[:1] == [THINK_ID]
    assert outcome.token_ids[1 + budget] == END_THINK_ID
    assert outcome.usage.reasoning_tokens == budget + 2
    assert outcome.text


def test_an_operators_limit_bounds_every_budget(service: Stack) -> None:
    admin = admin_pb2_grpc.AdminServiceStub(service.control)
    limits = device_pb2.DeviceLimits(max_reasoning_tokens=2)
    admin.SetOperatorLimits(admin_pb2.SetOperatorLimitsRequest(limits=limits), timeout=5)
    try:
        assert ask(service, "never ends", max_tokens=30).reasoning == "an"
        assert ask(service, "never ends", max_tokens=30, budget=1).reasoning == "a"
    finally:
        admin.SetOperatorLimits(admin_pb2.SetOperatorLimitsRequest(), timeout=5)
    assert len(ask(service, "never ends", max_tokens=30).reasoning) > 20


def switched(enabled: bool | None, model: str = "thinker") -> generation_pb2.GenerateRequest:
    message = request(chat(("user", "hi")), model=model, max_tokens=2)
    if enabled is not None:
        message.reasoning.enabled = enabled
    return message


def test_the_switch_is_the_templates(service: Stack) -> None:
    unset, on, off = (unary(service, switched(enabled)).usage.prompt_tokens for enabled in (None, True, False))
    assert unset == on
    assert off == on + len("T\n\nt\n\n")  # each mark is one token


@pytest.mark.parametrize("model", ["chatty", "strict"])
def test_a_model_that_does_not_think_says_so(service: Stack, model: str) -> None:
    outcome = stream(service, switched(True, model))
    assert (outcome.code.name, outcome.reason) == ("FAILED_PRECONDITION", "NO_THINKING")
    assert "reasoning.enabled" in outcome.message
    assert unary(service, switched(False, model)).ok
    budget = request("hi", model=model, max_tokens=2)
    budget.reasoning.budget_tokens = 5
    assert unary(service, budget).code.name == "FAILED_PRECONDITION"


def test_a_plain_text_has_no_switch(service: Stack) -> None:
    message = request("hi", model="thinker", max_tokens=2)
    message.reasoning.enabled = True
    outcome = unary(service, message)
    assert (outcome.code.name, outcome.fields) == ("INVALID_ARGUMENT", ["reasoning.enabled"])


def test_a_constraint_is_for_the_answer_behind_the_thinking(service: Stack) -> None:
    outcome = ask(service, "thinks", max_tokens=64, regex="[0-9]{4}")
    assert outcome.reasoning == "hm, hüm"
    assert outcome.text.isdigit()
    assert len(outcome.text) == 4


def test_an_answer_cut_anywhere_goes_on_as_if_it_had_not_been(service: Stack) -> None:
    whole = ask(service, "thinks", max_tokens=64)
    for count in range(1, len(whole.token_ids)):
        message = request(case_models.thinker().scripts["thinks"].prompt, model="thinker", token_ids=True)
        message.stopping.max_tokens = 64
        message.resume.emitted_token_ids.extend(whole.token_ids[:count])
        rest = stream(service, message)
        assert rest.ok, rest.message
        assert whole.reasoning.endswith(rest.reasoning)
        assert whole.text.endswith(rest.text)
        assert whole.token_ids[:count] + rest.token_ids == whole.token_ids
        assert rest.usage.reasoning_tokens == max(0, whole.usage.reasoning_tokens - count)
