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
from coldplate_server.events import Completed, Event
from coldplate_server.generation import Generator
from coldplate_server.metrics import Metrics
from coldplate_server.rpc import convert
from coldplate_server.rpc.gather import Gathering
from coldplate_server.rpc.status import outcome_of
from coldplate_server.rpc.tenant import tenant_of
from coldplate_server.rpc.write_watch import WriteWatch

log = structlog.get_logger()


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    def __init__(self, generator: Generator, metrics: Metrics, slow_reader_timeout_s: float) -> None:
        self._generator = generator
        self._metrics = metrics
        self._slow_reader_timeout_s = slow_reader_timeout_s

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        async with self._counted(request, context):
            parsed = convert.generation_request(request, request_id=_bound_request_id(), tenant=tenant_of(context))
            structlog.contextvars.bind_contextvars(request_id=parsed.request_id)
            answer = Gathering(parsed.n)
            stream = self._generator.stream(parsed, time_left_s=context.time_remaining())
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    answer.add(event)
                    self._note(parsed.model, event)
            return answer.response()
        raise AssertionError("unreachable")

    async def StreamGenerate(self, request: pb.StreamGenerateRequest, context: Any) -> None:
        async with self._counted(request.request, context):
            parsed = convert.generation_request(
                request.request, "request.", request_id=_bound_request_id(), tenant=tenant_of(context)
            )
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
                        watch.begin()
                        await _write(context, convert.stream_response(event))
                        watch.end()
                        self._note(parsed.model, event)

    def _note(self, model: str, event: Event) -> None:
        """Count and log what ends a request, once its caller has it."""
        if not isinstance(event, Completed):
            return
        usage, timings = event.usage, event.timings
        self._metrics.request_completed(self._generator.known_model(model), usage, timings)
        log.info(
            "request completed",
            device=event.device,
            finish=",".join(reason.value for reason in event.reasons),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens,
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
