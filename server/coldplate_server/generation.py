"""One generation from request to last event: check, tokenise, admit, read."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

from coldplate.clock import Clock
from coldplate_server.call import Call
from coldplate_server.catalog import Catalog
from coldplate_server.dispatcher import Dispatcher
from coldplate_server.errors import InvalidRequest, NoThinking, PromptTooLarge, RequestError, Violation
from coldplate_server.events import Event
from coldplate_server.fit import Room, check_resumable, fit_max_tokens
from coldplate_server.journal import EngineEnd, StreamRecord
from coldplate_server.needs import needs_of
from coldplate_server.reader import Reader
from coldplate_server.request import Conversation, GenerationRequest
from coldplate_server.text.constraint import ConstraintChecks
from coldplate_server.text.reasoning import Thinking
from coldplate_server.text.tokenizer import Tokenizer

# Odd, so that all choices have seeds of their own: 2^64 over the golden ratio, as hashes spread neighbours.
SEED_STEP = 0x9E3779B97F4A7C15


class Generator:
    """Runs generations. Knows nothing of gRPC."""

    def __init__(
        self,
        catalog: Catalog,
        dispatcher: Dispatcher,
        tokenizing: Executor,
        constraints: ConstraintChecks,
        clock: Clock,
        default_max_tokens: int,
        max_queue_wait_s: float,
    ) -> None:
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._tokenizing = tokenizing
        self._constraints = constraints
        self._clock = clock
        self._default_max_tokens = default_max_tokens
        self._max_queue_wait_s = max_queue_wait_s

    async def stream(
        self,
        request: GenerationRequest,
        *,
        time_left_s: float | None = None,
        flush_interval_s: float = 0.0,
        progress_interval_s: float = 0.0,
        field_prefix: str = "",
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of one generation; raises a RequestError when it cannot be finished. ``field_prefix`` goes
        before the paths of unusable fields.

        Closing the iterator at any point ends all work for it within two engine steps.
        """
        arrived = self._clock.now()
        self._dispatcher.check_open()
        model = self._catalog.resolve(request.model)
        tokenizer = self._catalog.tokenizer(model)
        self._dispatcher.journal.check_free(request.request_id)
        _check_reasoning(request, tokenizer, field_prefix)
        if request.constraint is not None:
            await self._constraints.check(request.constraint, field_prefix + request.constraint.kind)
        prompt_ids = await self._prompt_ids(tokenizer, request, field_prefix)
        deadline = None if time_left_s is None else arrived + time_left_s
        records = self._records(request, model, tokenizer, prompt_ids, arrived, deadline, field_prefix)
        readers = [Reader(index, record, tokenizer, request) for index, record in enumerate(records)]
        call = Call(readers, tokenizer, self._dispatcher, self._clock)
        wanted_s = request.queue_timeout_s
        queue_wait_s = self._max_queue_wait_s if wanted_s is None else min(wanted_s, self._max_queue_wait_s)
        if readers[0].end is not None or records[0].resumed == records[0].max_tokens:
            # The earlier call had come to its end: only that is left to tell.
            records[0].finish(EngineEnd("max_tokens"))
        else:
            self._dispatcher.enqueue(records, queue_wait_s)
        try:
            async with contextlib.aclosing(call.events(flush_interval_s, progress_interval_s)) as events:
                async for event in events:
                    yield event
        finally:
            for record in records:
                self._dispatcher.withdraw(record)

    def known_model(self, name: str) -> str:
        """The model a request names, for metrics: "unknown" for one not served, since callers can make up any."""
        try:
            return self._catalog.resolve(name)
        except RequestError:
            return "unknown"

    async def _prompt_ids(self, tokenizer: Tokenizer, request: GenerationRequest, field_prefix: str) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, tuple):
            return list(prompt)
        size = (
            sum(len(message.text.encode()) for message in prompt.messages)
            if isinstance(prompt, Conversation)
            else len(prompt.encode())
        )
        limit = tokenizer.max_prompt_bytes(tokenizer.max_context_tokens)
        if size > limit:
            text = (
                f"the prompt has {size} bytes; more than {limit} cannot fit the context of "
                f"{tokenizer.max_context_tokens} tokens"
            )
            raise PromptTooLarge([Violation(f"{field_prefix}input", text)], size=size, limit=limit)
        if isinstance(prompt, Conversation):
            field = f"{field_prefix}conversation"
            encode = partial(tokenizer.encode_conversation, prompt, field=field, thinking=request.reasoning.enabled)
        else:
            encode = partial(tokenizer.encode, prompt)
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, encode)

    def _records(
        self,
        request: GenerationRequest,
        model: str,
        tokenizer: Tokenizer,
        prompt_ids: list[int],
        arrived: float,
        deadline: float | None,
        field_prefix: str,
    ) -> list[StreamRecord]:
        """One for each choice. The first alone reports on the prompt that they share."""
        fleet = self._dispatcher.fleet
        room = Room(
            context=fleet.max_context(model) or tokenizer.max_context_tokens,
            context_now=fleet.context_now(model),
            cache=fleet.kv_capacity(model),
            vocabulary=fleet.vocabulary(model) or tokenizer.vocabulary_size,
        )
        max_tokens = fit_max_tokens(request, prompt_ids, room, self._default_max_tokens, field_prefix)
        seed = request.sampling.seed if request.sampling.seed is not None else secrets.randbits(63)
        ends = frozenset() if request.stop.ignore_end_of_text else tokenizer.end_of_text_ids
        stop_token_ids = ends | request.stop.token_ids
        check_resumable(request, stop_token_ids, field_prefix)
        thinking = _thinking(request, tokenizer, prompt_ids)
        may_think = thinking is not None and request.reasoning.enabled is not False
        needs = needs_of(request, field_prefix, may_think=may_think)
        records: list[StreamRecord] = []
        for index in range(request.n):
            records.append(
                StreamRecord(
                    number=self._dispatcher.journal.next_number(),
                    request_id=request.request_id,
                    model=model,
                    prompt_ids=prompt_ids,
                    sampling=replace(request.sampling, seed=seed_of_choice(seed, index)),
                    max_tokens=max_tokens,
                    context_limited=max_tokens < (request.max_tokens or self._default_max_tokens),
                    stop_token_ids=stop_token_ids,
                    priority=request.priority,
                    fallback=request.fallback,
                    arrived=arrived,
                    deadline=deadline,
                    min_tokens=request.stop.min_tokens,
                    logprobs_wanted=request.logprobs,
                    prompt_logprobs_wanted=None if records else request.prompt_logprobs,
                    constraint=request.constraint,
                    thinking=thinking,
                    needs=needs,
                    tenant=request.tenant,
                    sibling_of=records[0] if records else None,
                    emitted=list(request.resume_ids),
                    resumed=len(request.resume_ids),
                )
            )
        return records


def seed_of_choice(seed: int, index: int) -> int:
    """The seed that makes choice ``index`` again on its own."""
    return (seed + index * SEED_STEP) % 2**64


def _check_reasoning(request: GenerationRequest, tokenizer: Tokenizer, field_prefix: str) -> None:
    enabled, budget = request.reasoning.enabled, request.reasoning.budget_tokens
    if enabled is not None and not isinstance(request.prompt, Conversation):
        text = "needs a conversation: the chat template is what switches thinking"
        raise InvalidRequest([Violation(f"{field_prefix}reasoning.enabled", text)])
    thinks = tokenizer.thinking_marks is not None
    if not thinks and (enabled or budget is not None):
        asked = "enabled" if enabled else "budget_tokens"
        raise NoThinking(f"{field_prefix}reasoning.{asked}: this model does not think; leave it unset")
    if thinks and enabled is False and not tokenizer.can_switch_thinking:
        raise NoThinking(f"{field_prefix}reasoning.enabled: this model's chat template has no switch for thinking")


def _thinking(request: GenerationRequest, tokenizer: Tokenizer, prompt_ids: list[int]) -> Thinking | None:
    marks = tokenizer.thinking_marks
    if marks is None:
        return None
    prompt = request.prompt
    continued = isinstance(prompt, Conversation) and prompt.continue_final_message
    text = prompt.messages[-1].text if isinstance(prompt, Conversation) and continued else ""
    return Thinking(marks, tokenizer.opens_thinking(prompt_ids, text), request.reasoning.budget_tokens)
