"""One generation from request to last event: tokenise, admit, read the journal, make text, stop."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

from coldplate.clock import Clock
from coldplate_server.catalog import Catalog
from coldplate_server.dispatcher import Dispatcher
from coldplate_server.errors import PromptTooLarge, RequestError, Violation
from coldplate_server.events import Completed, Event, Progress, Started
from coldplate_server.fit import Room, check_resumable, fit_max_tokens
from coldplate_server.journal import EngineEnd, StreamRecord
from coldplate_server.reader import Reader
from coldplate_server.request import Conversation, GenerationRequest
from coldplate_server.result import ChoiceEnd, FinishReason, Timings, Usage
from coldplate_server.text.tokenizer import Tokenizer


class Generator:
    """Runs generations. Knows nothing of gRPC."""

    def __init__(
        self,
        catalog: Catalog,
        dispatcher: Dispatcher,
        tokenizing: Executor,
        clock: Clock,
        default_max_tokens: int,
        max_queue_wait_s: float,
    ) -> None:
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._tokenizing = tokenizing
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
        prompt_ids = await self._prompt_ids(tokenizer, request, field_prefix)
        record = self._record(request, model, tokenizer, prompt_ids, arrived, time_left_s, field_prefix)
        wanted_s = request.queue_timeout_s
        queue_wait_s = self._max_queue_wait_s if wanted_s is None else min(wanted_s, self._max_queue_wait_s)
        reader = Reader(record, tokenizer, request, self._clock)
        if reader.end is not None or record.resumed == record.max_tokens:
            record.finish(EngineEnd("max_tokens"))  # the earlier call had come to its end: only that is left to tell
        else:
            self._dispatcher.enqueue(record, queue_wait_s)
        try:
            async for event in self._read(reader, tokenizer, flush_interval_s, progress_interval_s):
                yield event
        finally:
            self._dispatcher.withdraw(record)

    def known_model(self, name: str) -> str:
        """The model a request names, for metrics: "unknown" for one not served, since callers can make up any."""
        try:
            return self._catalog.resolve(name)
        except RequestError:
            return "unknown"

    async def _read(
        self, reader: Reader, tokenizer: Tokenizer, flush_interval_s: float, progress_interval_s: float
    ) -> AsyncGenerator[Event, None]:
        record = reader.record
        started = False
        flush_at = 0.0
        while True:
            if record.error is not None and not reader.unread:
                raise record.error
            if not started and (record.admitted or record.delivered or record.end):
                started = True
                yield _started(record, tokenizer)
            now = self._clock.now() if flush_interval_s else 0.0
            if reader.unread and (record.over or now >= flush_at):
                delta = reader.take()
                flush_at = now + flush_interval_s
                if delta is not None:
                    yield delta
                    continue
            if reader.end is not None or (record.end is not None and not reader.unread):
                self._dispatcher.withdraw(record)
                if (rest := reader.finish()) is not None:
                    yield rest
                yield self._completed(reader, tokenizer)
                return
            if record.error is None or reader.unread:
                wait_s = flush_at - now if reader.unread else progress_interval_s
                if not await reader.changed(wait_s or None) and not reader.unread:
                    yield self._progress(record)

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
            encode = partial(tokenizer.encode_conversation, prompt, field=f"{field_prefix}conversation")
        else:
            encode = partial(tokenizer.encode, prompt)
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, encode)

    def _record(
        self,
        request: GenerationRequest,
        model: str,
        tokenizer: Tokenizer,
        prompt_ids: list[int],
        arrived: float,
        time_left_s: float | None,
        field_prefix: str,
    ) -> StreamRecord:
        fleet = self._dispatcher.fleet
        room = Room(
            context=fleet.max_context(model) or tokenizer.max_context_tokens,
            cache=fleet.kv_capacity(model),
            vocabulary=fleet.vocabulary(model) or tokenizer.vocabulary_size,
        )
        max_tokens = fit_max_tokens(request, prompt_ids, room, self._default_max_tokens, field_prefix)
        seed = request.sampling.seed if request.sampling.seed is not None else secrets.randbits(63)
        ends = frozenset() if request.stop.ignore_end_of_text else tokenizer.end_of_text_ids
        stop_token_ids = ends | request.stop.token_ids
        check_resumable(request, stop_token_ids, field_prefix)
        return StreamRecord(
            number=self._dispatcher.journal.next_number(),
            request_id=request.request_id,
            model=model,
            prompt_ids=prompt_ids,
            sampling=replace(request.sampling, seed=seed),
            max_tokens=max_tokens,
            context_limited=max_tokens < (request.max_tokens or self._default_max_tokens),
            stop_token_ids=stop_token_ids,
            priority=request.priority,
            fallback=request.fallback,
            arrived=arrived,
            deadline=None if time_left_s is None else arrived + time_left_s,
            emitted=list(request.resume_ids),
            resumed=len(request.resume_ids),
        )

    def _progress(self, record: StreamRecord) -> Progress:
        if record.submitted is None:
            return Progress("queued", self._dispatcher.queue.position(record), throttled=False)
        phase = "decode" if record.first_token is not None else "prefill"
        return Progress(phase, 0, self._dispatcher.fleet.throttled(record.worker))

    def _completed(self, reader: Reader, tokenizer: Tokenizer) -> Completed:
        record = reader.record
        end = reader.end or _engine_end(record, tokenizer)
        usage = Usage(
            prompt_tokens=len(record.prompt_ids),
            completion_tokens=reader.taken - record.resumed,
            cached_tokens=record.cached_tokens,
        )
        return Completed(end, usage, _timings(record, usage.completion_tokens, self._clock.now()), record.device or "")


def _started(record: StreamRecord, tokenizer: Tokenizer) -> Started:
    assert record.sampling.seed is not None
    return Started(
        request_id=record.request_id,
        model=record.model,
        model_revision=tokenizer.revision,
        device=record.device or "",
        prompt_tokens=len(record.prompt_ids),
        cached_tokens=record.cached_tokens,
        seed=record.sampling.seed,
        max_tokens=record.max_tokens,
    )


def _engine_end(record: StreamRecord, tokenizer: Tokenizer) -> ChoiceEnd:
    assert record.end is not None
    match record.end.cause:
        case "stop_token" if record.end.stop_token_id in tokenizer.end_of_text_ids:
            return ChoiceEnd(FinishReason.END_OF_TEXT)
        case "stop_token":
            return ChoiceEnd(FinishReason.STOP_SEQUENCE, stop_token_id=record.end.stop_token_id)
        case "max_tokens" if not record.context_limited:
            return ChoiceEnd(FinishReason.MAX_TOKENS)
        case _:
            return ChoiceEnd(FinishReason.CONTEXT_FULL)


def _timings(record: StreamRecord, tokens: int, now: float) -> Timings:
    submitted = record.submitted if record.submitted is not None else now
    first = record.first_token if record.first_token is not None else now
    last = record.last_token if record.last_token is not None else first
    return Timings(
        queued_s=submitted - record.arrived,
        prefill_s=first - submitted,
        first_token_s=first - record.arrived,
        decode_s=last - first,
        per_token_s=(last - first) / (tokens - 1) if tokens > 1 else 0.0,
        total_s=now - record.arrived,
        throttled_s=max(0.0, record.paced_s),
    )
