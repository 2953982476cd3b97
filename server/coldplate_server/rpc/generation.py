"""GenerationService: convert, run, convert."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog

from coldplate.v1 import generation_pb2 as pb
from coldplate.v1 import generation_pb2_grpc
from coldplate_server.errors import RequestError
from coldplate_server.events import Completed, Delta, Event, Progress, Started
from coldplate_server.generation import Generator
from coldplate_server.metrics import Metrics
from coldplate_server.rpc import convert
from coldplate_server.rpc.status import outcome_of
from coldplate_server.rpc.write_watch import WriteWatch

log = structlog.get_logger()

_PHASES = {"queued": pb.PHASE_QUEUED, "prefill": pb.PHASE_PREFILL, "decode": pb.PHASE_DECODE}


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    def __init__(self, generator: Generator, metrics: Metrics, slow_reader_timeout_s: float) -> None:
        self._generator = generator
        self._metrics = metrics
        self._slow_reader_timeout_s = slow_reader_timeout_s

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        async with self._counted(request, context):
            parsed = convert.generation_request(request, request_id=_bound_request_id())
            structlog.contextvars.bind_contextvars(request_id=parsed.request_id)
            response = pb.GenerateResponse(choices=[pb.Choice()])
            text: list[str] = []
            async with contextlib.aclosing(
                self._generator.stream(parsed, time_left_s=context.time_remaining())
            ) as events:
                async for event in events:
                    self._gather(event, response, text)
            return response
        raise AssertionError("unreachable")

    async def StreamGenerate(self, request: pb.StreamGenerateRequest, context: Any) -> None:
        async with self._counted(request.request, context):
            parsed = convert.generation_request(request.request, "request.", request_id=_bound_request_id())
            structlog.contextvars.bind_contextvars(request_id=parsed.request_id)
            options = convert.stream_options(request.options)
            stream = self._generator.stream(
                parsed,
                field_prefix="request.",
                time_left_s=context.time_remaining(),
                flush_interval_s=options.flush_interval_s,
                progress_interval_s=options.progress_interval_s,
            )
            watch = WriteWatch(self._slow_reader_timeout_s)
            with watch.watching():
                async with contextlib.aclosing(stream) as events:
                    async for event in events:
                        for message in _messages(event):
                            watch.begin()
                            await _write(context, message)
                            watch.end()
                        if isinstance(event, Completed):
                            self._completed(parsed.model, event)

    def _gather(self, event: Event, response: pb.GenerateResponse, text: list[str]) -> None:
        choice = response.choices[0]
        match event:
            case Started():
                response.request_id, response.model = event.request_id, event.model
                response.model_revision, response.seed = event.model_revision, event.seed
            case Delta():
                text.append(event.text)
                choice.token_ids.extend(event.token_ids)
            case Completed():
                choice.text = "".join(text)
                choice.finish_reason = convert.finish_reason(event.end.reason)
                _set_match(choice, event)
                response.device = event.device
                response.usage.CopyFrom(convert.usage(event.usage))
                response.timings.CopyFrom(convert.timings(event.timings))
                self._completed(response.model, event)

    def _completed(self, model: str, event: Completed) -> None:
        usage, timings = event.usage, event.timings
        self._metrics.request_completed(self._generator.known_model(model), usage, timings)
        log.info(
            "request completed",
            device=event.device,
            finish=event.end.reason.value,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            queued_s=round(timings.queued_s, 4),
            first_token_s=round(timings.first_token_s, 4),
            per_token_s=round(timings.per_token_s, 4),
            total_s=round(timings.total_s, 4),
        )

    @contextlib.asynccontextmanager
    async def _counted(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[None]:
        """Give each request exactly one outcome, whatever ends it."""
        outcome = "failed"
        try:
            yield
            outcome = "ok"
        except RequestError as error:
            outcome = outcome_of(error)
            raise
        except asyncio.CancelledError:
            left = context.time_remaining()
            outcome = "deadline" if left is not None and left <= 0 else "cancelled"
            log.info("request ended by its caller", outcome=outcome)
            raise
        finally:
            self._metrics.request_ended(self._generator.known_model(request.model), outcome)


def _bound_request_id() -> str | None:
    """The id the interceptor has bound: the caller's ``x-request-id``, or a new one."""
    return structlog.contextvars.get_contextvars().get("request_id")


async def _write(context: Any, message: pb.StreamGenerateResponse) -> None:
    try:
        await context.write(message)
    except grpc.aio.BaseError as error:  # how a write that was waiting ends when its caller goes
        raise asyncio.CancelledError from error


def _messages(event: Event) -> list[pb.StreamGenerateResponse]:
    match event:
        case Delta():
            delta = pb.Delta(
                first_token_index=event.first_token_index,
                token_count=event.token_count,
                text=event.text,
                token_ids=event.token_ids,
            )
            return [pb.StreamGenerateResponse(delta=delta)]
        case Started():
            return [
                pb.StreamGenerateResponse(
                    started=pb.Started(
                        request_id=event.request_id,
                        model=event.model,
                        model_revision=event.model_revision,
                        device=event.device,
                        prompt_tokens=event.prompt_tokens,
                        cached_tokens=event.cached_tokens,
                        seed=event.seed,
                        max_tokens=event.max_tokens,
                    )
                )
            ]
        case Progress():
            progress = pb.Progress(
                phase=_PHASES[event.phase], queue_position=event.queue_position, throttled=event.throttled
            )
            return [pb.StreamGenerateResponse(progress=progress)]
        case Completed():
            finished = pb.ChoiceFinished(reason=convert.finish_reason(event.end.reason))
            _set_match(finished, event)
            completed = pb.Completed(usage=convert.usage(event.usage), timings=convert.timings(event.timings))
            return [
                pb.StreamGenerateResponse(choice_finished=finished),
                pb.StreamGenerateResponse(completed=completed),
            ]


def _set_match(message: pb.Choice | pb.ChoiceFinished, event: Completed) -> None:
    if event.end.stop_sequence is not None:
        message.stop_sequence = event.end.stop_sequence
    elif event.end.stop_token_id is not None:
        message.stop_token_id = event.end.stop_token_id
