"""What ends a call other than success, through a real channel, for every style of handler."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
import structlog
from structlog.testing import capture_logs

from coldplate.v1 import generation_pb2 as pb
from coldplate_server.errors import QueueFull, StreamCut
from coldplate_server.rpc.interceptor import RequestInterceptor

Code = grpc.StatusCode
SERVICE = "coldplate.v1.GenerationService"
STYLES = ["unary", "generator", "coroutine"]
Act = Callable[[Any], Awaitable[None]]


class Scripted:
    """The three styles of handler; each sends one message, then does ``act``."""

    def __init__(self, act: Act) -> None:
        self.act = act
        self.bound: list[Any] = []
        self.closed = asyncio.Event()

    async def unary(self, request: Any, context: Any) -> pb.GenerateResponse:
        self.bound.append(structlog.contextvars.get_contextvars().get("request_id"))
        try:
            await self.act(context)
        finally:
            self.closed.set()
        return pb.GenerateResponse(request_id=request.text)

    async def generator(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        try:
            yield pb.GenerateResponse(request_id=request.text)
            await self.act(context)
        finally:
            self.closed.set()

    async def coroutine(self, request: Any, context: Any) -> None:
        try:
            await context.write(pb.GenerateResponse(request_id=request.text))
            await self.act(context)
        finally:
            self.closed.set()


@contextlib.asynccontextmanager
async def serving(scripted: Scripted) -> AsyncIterator[grpc.aio.Channel]:
    codec = {
        "request_deserializer": pb.GenerateRequest.FromString,
        "response_serializer": pb.GenerateResponse.SerializeToString,
    }
    handlers = {
        "unary": grpc.unary_unary_rpc_method_handler(scripted.unary, **codec),
        "generator": grpc.unary_stream_rpc_method_handler(scripted.generator, **codec),
        "coroutine": grpc.unary_stream_rpc_method_handler(scripted.coroutine, **codec),
    }
    server = grpc.aio.server(interceptors=[RequestInterceptor()])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def start(channel: grpc.aio.Channel, style: str, data: bytes | None = None, **options: Any) -> Any:
    kind = channel.unary_unary if style == "unary" else channel.unary_stream
    method = kind(f"/{SERVICE}/{style}", response_deserializer=pb.GenerateResponse.FromString)
    return method(pb.GenerateRequest(text="hi").SerializeToString() if data is None else data, **options)


async def texts(call: Any, style: str) -> list[str]:
    if style == "unary":
        return [(await call).request_id]
    return [response.request_id async for response in call]


async def failure(call: Any, style: str) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await texts(call, style)
    return caught.value


async def succeed(context: Any) -> None:
    pass


@pytest.mark.parametrize("style", STYLES)
async def test_success_passes_through(style: str) -> None:
    async with serving(Scripted(succeed)) as channel:
        assert await texts(start(channel, style, timeout=5), style) == ["hi"]


@pytest.mark.parametrize("style", STYLES)
async def test_a_request_error_becomes_its_status(style: str) -> None:
    async def act(context: Any) -> None:
        raise QueueFull("the queue is full", retry_after_s=2)

    async with serving(Scripted(act)) as channel:
        error = await failure(start(channel, style, timeout=5), style)
    assert (error.code(), error.details()) == (Code.RESOURCE_EXHAUSTED, "the queue is full")
    trailing = dict(error.trailing_metadata())
    assert trailing["grpc-retry-pushback-ms"] == "2000"
    assert b"QUEUE_FULL" in trailing["grpc-status-details-bin"]


@pytest.mark.parametrize("style", ["generator", "coroutine"])
async def test_what_was_sent_before_an_error_arrives(style: str) -> None:
    async def act(context: Any) -> None:
        raise StreamCut("the worker died", delivered=1)

    async with serving(Scripted(act)) as channel:
        received = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # noqa: PT012 - the loop is the call
            async for response in start(channel, style, timeout=5):
                received.append(response.request_id)  # noqa: PERF401 - the loop ends by an exception
    assert received == ["hi"]
    assert caught.value.code() is Code.ABORTED


class Panic(BaseException):
    """As native libraries raise it."""


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", [KeyError, Panic])
async def test_an_unexpected_error_shows_neither_class_nor_text(style: str, kind: type[BaseException]) -> None:
    async def act(context: Any) -> None:
        raise kind("/secret/path")

    with capture_logs() as logs:
        async with serving(Scripted(act)) as channel:
            error = await failure(start(channel, style, timeout=5), style)
    assert error.code() is Code.UNKNOWN
    assert kind.__name__ not in error.details()
    assert "secret" not in error.details()
    (line,) = [line for line in logs if line["log_level"] == "error"]
    assert line["incident"] in error.details()
    assert line["exc_info"]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("how", ["raised", "task cancelled"])
async def test_a_cancel_from_within_does_not_leave_the_caller_waiting(style: str, how: str) -> None:
    async def act(context: Any) -> None:
        if how == "raised":
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    async with serving(Scripted(act)) as channel:
        error = await failure(start(channel, style, timeout=20), style)
    assert error.code() is Code.ABORTED


@pytest.mark.parametrize("style", STYLES)
async def test_a_callers_cancel_ends_the_handler_without_an_error_line(style: str) -> None:
    entered = asyncio.Event()

    async def act(context: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    scripted = Scripted(act)
    with capture_logs() as logs:
        async with serving(scripted) as channel:
            call = start(channel, style)
            async with asyncio.timeout(5):
                if style == "unary":
                    asyncio.ensure_future(call)  # noqa: RUF006 - the call itself is kept
                else:
                    await call.read()
                await entered.wait()
                call.cancel()
                await scripted.closed.wait()
    assert [line for line in logs if line["log_level"] not in ("debug", "info")] == []


@pytest.mark.parametrize("style", STYLES)
async def test_a_handlers_own_abort_passes_through(style: str) -> None:
    async def act(context: Any) -> None:
        await context.abort(Code.OUT_OF_RANGE, "mine")

    async with serving(Scripted(act)) as channel:
        error = await failure(start(channel, style, timeout=5), style)
    assert (error.code(), error.details()) == (Code.OUT_OF_RANGE, "mine")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("data", [bytes.fromhex("1a0561eda08062"), b"\xff\xff", b"\x1a\x7fcut"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(style: str, data: bytes) -> None:
    scripted = Scripted(succeed)
    async with serving(scripted) as channel:
        error = await failure(start(channel, style, data, timeout=5), style)
        assert error.code() is Code.INVALID_ARGUMENT
        assert "UTF-8" in error.details()
        assert "Error" not in error.details()
        assert await texts(start(channel, style, timeout=5), style) == ["hi"]


async def test_the_callers_request_id_is_bound_to_log_lines() -> None:
    scripted = Scripted(succeed)
    async with serving(scripted) as channel:
        for request_id in ("trace-7", "x" * 300, "", None):
            metadata = None if request_id is None else [("x-request-id", request_id)]
            await start(channel, "unary", metadata=metadata, timeout=5)
    assert scripted.bound[0] == "trace-7"
    assert all(len(made) == 32 for made in scripted.bound[1:])
    assert len(set(scripted.bound)) == 4


async def test_an_unknown_method_is_unimplemented() -> None:
    async with serving(Scripted(succeed)) as channel:
        error = await failure(channel.unary_unary(f"/{SERVICE}/Nonesuch")(b"", timeout=5), "unary")
    assert error.code() is Code.UNIMPLEMENTED
