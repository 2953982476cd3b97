"""From a request to the events of its choices, with a worker whose every message the test writes."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from coldplate.clock import MonotonicClock
from coldplate.internal.v1 import engine_pb2
from coldplate.limits import Limits
from coldplate.v1 import generation_pb2
from coldplate_server.admission.policy import AdmissionPolicy
from coldplate_server.catalog import Catalog
from coldplate_server.dispatcher import Dispatcher
from coldplate_server.errors import (
    ConstraintFailed,
    FeatureUnimplemented,
    InvalidRequest,
    NonFiniteLogits,
    NoThinking,
    QueueTimeout,
    RequestError,
)
from coldplate_server.events import ChoiceFinished, Completed, Delta, Event, PromptLogprobs, Started
from coldplate_server.generation import SEED_STEP, Generator
from coldplate_server.journal import Journal
from coldplate_server.limit_book import LimitBook
from coldplate_server.request import (
    ChatMessage,
    Constraint,
    Conversation,
    GenerationRequest,
    Reasoning,
    SamplingParams,
    StopRules,
)
from coldplate_server.request_queue import RequestQueue
from coldplate_server.result import FinishReason, TokenLogprob
from coldplate_server.settings import ServedModel, WorkerSpec
from coldplate_server.text.constraint import ConstraintChecks
from coldplate_server.workers.fleet import Fleet
from coldplate_server.workers.link import WorkerLink
from support import text_models
from support.fake_engine import FakeEngine, hello
from support.tokenizers import END_OF_TEXT_ID, END_THINK, END_THINK_ID, THINK, THINK_ID, THINKING, TokenizerSpec

ALL = ["penalties", "logit_bias", "min_tokens", "logprobs", "prompt_logprobs", "guided", "thinking"]
ASK = GenerationRequest("r", "m", (1, 2, 3), max_tokens=8, sampling=SamplingParams(seed=1), want_token_ids=True)
SPEC = TokenizerSpec(chat_template=THINKING, extra=(THINK, END_THINK))


@dataclass
class Answer:
    """What a call brought, read in the background."""

    events: list[Event] = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def text(self, choice: int = 0) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Delta) and e.choice_index == choice)

    async def done(self) -> "Answer":
        assert self.task is not None
        async with asyncio.timeout(5):
            await self.task
        return self

    async def refused(self) -> RequestError:
        with pytest.raises(RequestError) as caught:
            await self.done()
        return caught.value


@dataclass
class Service:
    engine: FakeEngine
    dispatcher: Dispatcher
    generator: Generator
    limits: LimitBook
    ready: asyncio.Event

    def worker_changed(self, link: WorkerLink) -> None:
        self.dispatcher.tick()
        self.ready.set()

    def step_taken(self, link: WorkerLink, tokens: int) -> None:
        self.dispatcher.pump()

    def ask(self, request: GenerationRequest) -> Answer:
        answer = Answer()

        async def read() -> None:
            async for event in self.generator.stream(request, field_prefix="request."):
                answer.events.append(event)

        answer.task = asyncio.create_task(read())
        return answer

    async def submits(self, count: int) -> list[engine_pb2.Submit]:
        return [(await self.engine.command()).submit for _ in range(count)]

    def finish(self, stream: int, cause: int = engine_pb2.STOP_CAUSE_MAX_TOKENS, **fields: object) -> None:
        finished = engine_pb2.Finished(stream=stream, cause=cause, **fields)  # type: ignore[arg-type]
        self.engine.step(finished=(finished,), credit=(stream, 4, 256))


@pytest.fixture
def features() -> list[str]:
    return ALL


@pytest.fixture
async def service(tmp_path: Path, features: list[str]) -> AsyncIterator[Service]:
    text_models.load(tmp_path / "model", SPEC)
    clock = MonotonicClock()
    async with FakeEngine(tmp_path / "e.sock") as engine:
        engine.hello = hello(features=features)
        limits = LimitBook(clock, {"cpu": Limits()}, frozenset())
        dispatcher = Dispatcher(Journal(), RequestQueue(AdmissionPolicy(max_waiting=8)), clock)
        catalog = Catalog([ServedModel("m", tmp_path / "model")])
        constraints = ConstraintChecks()
        with ThreadPoolExecutor(1) as pool:
            generator = Generator(catalog, dispatcher, pool, constraints, clock, 16, 10.0)
            made = Service(engine, dispatcher, generator, limits, asyncio.Event())
            specs = [WorkerSpec("worker-0", ServedModel("m", Path("m")), address=engine.address)]
            dispatcher.fleet = Fleet(specs, lambda spec, listen, workers: [], tmp_path, limits, clock, made)
            dispatcher.fleet.start()
            async with asyncio.timeout(5):
                await made.ready.wait()
            yield made
            await dispatcher.fleet.stop()
            await constraints.close()


async def test_choices_are_streams_of_one_prompt_that_end_one_by_one(service: Service) -> None:
    answer = service.ask(replace(ASK, n=3, prompt_logprobs=0))
    first, second, third = await service.submits(3)
    assert [submit.sampling.seed for submit in (first, second, third)] == [
        (1 + index * SEED_STEP) % 2**64 for index in range(3)
    ]
    assert [submit.sibling_of for submit in (first, second, third)] == [0, first.stream, first.stream]
    assert [submit.HasField("prompt_logprobs") for submit in (first, second, third)] == [True, False, False]
    service.engine.step({second.stream: ord("b")})
    service.finish(second.stream)
    service.engine.step({first.stream: ord("a"), third.stream: ord("c")})
    service.finish(third.stream, engine_pb2.STOP_CAUSE_STOP_TOKEN, stop_token_id=END_OF_TEXT_ID)
    service.finish(first.stream)
    await answer.done()
    assert [answer.text(index) for index in range(3)] == ["a", "b", "c"]
    ends = [event for event in answer.events if isinstance(event, ChoiceFinished)]
    assert [end.choice_index for end in ends] == [1, 2, 0]
    completed = answer.events[-1]
    assert isinstance(completed, Completed)
    assert (completed.usage.prompt_tokens, completed.usage.completion_tokens) == (3, 3)
    assert completed.reasons == (FinishReason.MAX_TOKENS, FinishReason.MAX_TOKENS, FinishReason.END_OF_TEXT)
    assert len(answer.of(Started)) == 1


async def test_a_choice_that_fails_ends_the_call_and_the_others(service: Service) -> None:
    answer = service.ask(replace(ASK, n=2))
    first, second = await service.submits(2)
    service.engine.step({first.stream: ord("a"), second.stream: ord("b")})
    error = engine_pb2.ENGINE_ERROR_NON_FINITE_LOGITS
    service.finish(second.stream, engine_pb2.STOP_CAUSE_ERROR, error=error)
    assert isinstance(await answer.refused(), NonFiniteLogits)
    assert (await service.engine.command()).cancel.stream == first.stream
    assert (answer.text(0), answer.text(1)) == ("a", "b")
    assert len(service.dispatcher.journal) == 0


async def test_choices_beyond_the_slots_wait_as_long_as_it_takes_once_the_first_has_begun(service: Service) -> None:
    answer = service.ask(replace(ASK, n=6, queue_timeout_s=0.01))
    started = await service.submits(4)
    await asyncio.sleep(0.03)
    service.dispatcher.tick()
    assert len(service.dispatcher.queue) == 2
    for submit in started:
        service.finish(submit.stream)
    for submit in await service.submits(2):
        service.finish(submit.stream)
    await answer.done()
    assert len(answer.of(ChoiceFinished)) == 6


async def test_who_will_not_wait_needs_room_for_every_choice(service: Service) -> None:
    answer = service.ask(replace(ASK, n=6, queue_timeout_s=0.0))
    assert isinstance(await answer.refused(), QueueTimeout)
    commands = [await service.engine.command() for _ in range(8)]
    assert sum(command.HasField("submit") for command in commands) == 4
    assert sum(command.HasField("cancel") for command in commands) == 4
    assert len(service.dispatcher.queue) == len(service.dispatcher.journal) == 0


async def test_every_knob_reaches_the_worker(service: Service) -> None:
    sampling = SamplingParams(0.5, 0.9, 3, 0.1, 7, 1.5, -1.0, 0.5, {5: -2.0})
    constraint = Constraint("choices", ("x", "y"))
    request = replace(
        ASK,
        sampling=sampling,
        stop=StopRules(min_tokens=3, token_ids=frozenset({9})),
        logprobs=2,
        prompt_logprobs=1,
        constraint=constraint,
        reasoning=Reasoning(budget_tokens=4),
    )
    answer = service.ask(request)
    (submit,) = await service.submits(1)
    assert submit.sampling == engine_pb2.SamplingParams(
        temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, seed=7, repetition_penalty=1.5, presence_penalty=-1.0,
        frequency_penalty=0.5, logit_bias={5: -2.0},
    )  # fmt: skip
    assert (submit.min_tokens, submit.logprobs, submit.prompt_logprobs) == (3, 2, 1)
    assert list(submit.constraint.choices.texts) == ["x", "y"]
    thinking = submit.thinking
    assert (thinking.start_token_id, thinking.end_token_id, thinking.budget_tokens) == (THINK_ID, END_THINK_ID, 4)
    assert list(thinking.close_token_ids) == [END_THINK_ID, 10, 10]
    assert not thinking.open
    service.finish(submit.stream)
    await answer.done()


async def test_log_probabilities_belong_to_what_is_delivered(service: Service) -> None:
    answer = service.ask(replace(ASK, logprobs=1, prompt_logprobs=0, stop=StopRules(sequences=("bc",))))
    (submit,) = await service.submits(1)

    def logprob(token: int) -> generation_pb2.TokenLogprob:
        other = generation_pb2.TokenAlternative(token_id=9, logprob=-2.0)
        return generation_pb2.TokenLogprob(token_id=token, logprob=-1.0, alternatives=[other])

    tokens = [ord(char) for char in "abcd"]
    step = engine_pb2.Step(
        streams=[submit.stream] * 4,
        token_ids=tokens,
        logprobs=[engine_pb2.NewTokenLogprob(index=at, logprob=logprob(tokens[at])) for at in (0, 2, 3)],
        prompt_logprobs=[engine_pb2.PromptLogprobs(stream=submit.stream, first=1, logprobs=[logprob(2), logprob(3)])],
    )
    service.engine.say(engine_pb2.RunResponse(step=step))
    await answer.done()
    known = [TokenLogprob(token, -1.0, ((9, -2.0),)) for token in (*tokens[:1], *tokens[2:3])]
    delivered = [item for event in answer.events if isinstance(event, Delta) for item in event.logprobs]
    assert delivered == [known[0], TokenLogprob(ord("b"), 0.0), known[1]]
    (prompt,) = (event for event in answer.events if isinstance(event, PromptLogprobs))
    assert (prompt.first_token_index, [item.token_id for item in prompt.logprobs]) == (1, [2, 3])
    assert answer.text() == "a"


@pytest.mark.parametrize("delivered", [0, 2])
async def test_a_constraint_that_the_worker_gives_up(service: Service, delivered: int) -> None:
    answer = service.ask(replace(ASK, constraint=Constraint("regex", ("[ab]+",))))
    (submit,) = await service.submits(1)
    for _ in range(delivered):
        service.engine.step({submit.stream: ord("a")})
    error = engine_pb2.ENGINE_ERROR_BAD_CONSTRAINT
    service.finish(submit.stream, engine_pb2.STOP_CAUSE_ERROR, error=error, error_text="too many states")
    refused = await answer.refused()
    assert "too many states" in refused.message
    if delivered:
        assert isinstance(refused, ConstraintFailed)
        assert refused.facts["delivered_tokens"] == "2"
    else:
        assert isinstance(refused, InvalidRequest)
        assert refused.violations[0].field == "request.regex"


ASKS = {
    "sampling.repetition_penalty": {"sampling": SamplingParams(seed=1, repetition_penalty=1.1)},
    "sampling.frequency_penalty": {"sampling": SamplingParams(seed=1, frequency_penalty=1)},
    "sampling.logit_bias": {"sampling": SamplingParams(seed=1, logit_bias={1: 1.0})},
    "stopping.min_tokens": {"stop": StopRules(min_tokens=1)},
    "reporting.logprobs": {"logprobs": 0},
    "reporting.prompt_logprobs": {"prompt_logprobs": 0},
    "regex": {"constraint": Constraint("regex", ("a",))},
    "reasoning.budget_tokens": {"reasoning": Reasoning(budget_tokens=1)},
}


@pytest.mark.parametrize("features", [[]])
@pytest.mark.parametrize("field_name", list(ASKS))
async def test_what_the_engine_lacks_is_named_at_the_door(service: Service, field_name: str) -> None:
    refused = await service.ask(replace(ASK, **ASKS[field_name])).refused()  # type: ignore[arg-type]
    assert isinstance(refused, FeatureUnimplemented)
    assert refused.facts["field"] == f"request.{field_name}"
    assert refused.facts["engine"] == "fake"
    plain = service.ask(ASK)
    (submit,) = await service.submits(1)
    assert not submit.HasField("thinking")
    service.finish(submit.stream)
    await plain.done()


async def test_a_limit_on_thinking_binds_the_budget(service: Service) -> None:
    service.limits.set_operator("cpu", Limits(max_reasoning_tokens=5))
    for own, sent in ((None, 5), (3, 3), (9, 5)):
        answer = service.ask(replace(ASK, reasoning=Reasoning(budget_tokens=own)))
        (submit,) = await service.submits(1)
        assert submit.thinking.budget_tokens == sent
        service.finish(submit.stream)
        await answer.done()


async def test_thinking_is_found_in_the_prompt_and_switched_by_the_template(service: Service) -> None:
    turns = Conversation((ChatMessage("user", "hi <think>"),))
    opened = Conversation((ChatMessage("assistant", "<think>\nso"),), continue_final_message=True)
    for prompt, enabled, is_open in (((1, THINK_ID, 10), None, True), (turns, False, False), (opened, None, True)):
        answer = service.ask(replace(ASK, prompt=prompt, reasoning=Reasoning(enabled)))
        (submit,) = await service.submits(1)
        assert submit.thinking.open is is_open
        if enabled is False:
            assert list(submit.prompt_token_ids[-6:]) == [THINK_ID, 10, 10, END_THINK_ID, 10, 10]
        service.finish(submit.stream)
        await answer.done()


async def test_a_text_cannot_be_switched(service: Service) -> None:
    refused = await service.ask(replace(ASK, prompt="hi", reasoning=Reasoning(True))).refused()
    assert isinstance(refused, InvalidRequest)
    assert not isinstance(refused, NoThinking)
    assert refused.violations[0].field == "request.reasoning.enabled"
