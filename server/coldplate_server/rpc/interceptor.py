"""What holds for every call: the request id on each log line, and a typed status for whatever ends it.

Async handlers are wrapped once per call; those of one request get nothing added per message.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

import grpc
import structlog

from coldplate_server.errors import Aborted, InvalidRequest, RequestError, Violation
from coldplate_server.rpc.status import to_status

REQUEST_ID_KEY = "x-request-id"
_MAX_REQUEST_ID_CHARACTERS = 256

log = structlog.get_logger()


class _Undecodable:
    """Stands for a request whose bytes are no message of its type."""


_UNDECODABLE = _Undecodable()
Handler = Callable[[Any, Any], Any]


class RequestInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        if handler is None or (handler.request_streaming and not handler.response_streaming):
            return handler
        method, request_id = handler_call_details.method, _request_id(handler_call_details.invocation_metadata)
        if handler.request_streaming:
            if not inspect.isasyncgenfunction(handler.stream_stream):
                return handler
            wrap, behaviour = (
                grpc.stream_stream_rpc_method_handler,
                _conversing(handler.stream_stream, method, request_id),
            )
        elif handler.response_streaming:
            if not _is_async(handler.unary_stream):
                return handler
            wrap, behaviour = grpc.unary_stream_rpc_method_handler, _streaming(handler.unary_stream, method, request_id)
        else:
            if not _is_async(handler.unary_unary):
                return handler
            wrap, behaviour = grpc.unary_unary_rpc_method_handler, _unary(handler.unary_unary, method, request_id)
        return wrap(behaviour, _tolerant(handler.request_deserializer), handler.response_serializer)


def _unary(inner: Handler, method: str, request_id: str) -> Handler:
    async def unary(request: Any, context: Any) -> Any:
        async with _typed_end(method, request_id, context):
            _check_decoded(request)
            return await inner(request, context)
        raise AssertionError("a suppressed exception")

    return unary


def _streaming(inner: Handler, method: str, request_id: str) -> Handler:
    """Always coroutine style: a generator is drained here instead of by gRPC, so a message takes no extra step."""
    if not inspect.isasyncgenfunction(inner):

        async def writing(request: Any, context: Any) -> None:
            async with _typed_end(method, request_id, context):
                _check_decoded(request)
                await inner(request, context)

        return writing

    async def drained(request: Any, context: Any) -> None:
        async with _typed_end(method, request_id, context):
            _check_decoded(request)
            async with contextlib.aclosing(inner(request, context)) as responses:
                async for response in responses:
                    await context.write(response)

    return drained


def _conversing(inner: Handler, method: str, request_id: str) -> Handler:
    """For streams of requests, such as reflection's."""

    async def decoded(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            _check_decoded(request)
            yield request

    async def conversing(requests: AsyncIterator[Any], context: Any) -> None:
        responses = inner(decoded(requests), context)
        async with _typed_end(method, request_id, context), contextlib.aclosing(responses):
            async for response in responses:
                await context.write(response)

    return conversing


@contextlib.asynccontextmanager
async def _typed_end(method: str, request_id: str, context: Any) -> AsyncIterator[None]:
    with structlog.contextvars.bound_contextvars(request_id=request_id):
        try:
            yield
        except grpc.aio.AbortError:
            raise
        except RequestError as error:
            log.debug("request refused or ended", method=method, reason=error.reason, detail=error.message)
            code, message, trailing = to_status(error)
            await context.abort(code, message, trailing_metadata=trailing)
        except asyncio.CancelledError:
            await _tell_if_still_there(context)
            raise
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException:  # a panic in a native library is no Exception, and gRPC would leave the caller waiting
            incident = uuid4().hex[:12]
            log.exception("unexpected error in a request", method=method, incident=incident)
            await context.abort(
                grpc.StatusCode.UNKNOWN, f"unexpected error; the server's log has it as incident {incident}"
            )


async def _tell_if_still_there(context: Any) -> None:
    """A cancelled handler sends nothing by itself: a caller that did not cancel would wait for ever.

    Whether the caller did cannot be asked; but a status cannot be sent to one that has gone, and that error says so.
    """
    code, message, trailing = to_status(Aborted("the server ended this request before its answer was complete"))
    try:
        await context.abort(code, message, trailing_metadata=trailing)
    except grpc.aio.AbortError:
        raise
    except Exception:
        log.debug("the caller has gone")


def _check_decoded(request: Any) -> None:
    if request is _UNDECODABLE:
        text = "cannot be decoded: it is cut or foreign, or holds text that is not valid UTF-8"
        raise InvalidRequest([Violation("request", text)])


def _tolerant(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """gRPC answers UNKNOWN with a class name when decoding raises, before any handler runs."""
    if deserialize is None:
        return None

    def tolerant(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception:
            return _UNDECODABLE

    return tolerant


def _is_async(function: Handler) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _request_id(metadata: Sequence[tuple[str, str | bytes]] | None) -> str:
    """The caller's, if it is one printable line; otherwise a new one."""
    for key, value in metadata or ():
        if key == REQUEST_ID_KEY and isinstance(value, str) and 0 < len(value) <= _MAX_REQUEST_ID_CHARACTERS:
            return value if value.isprintable() else uuid4().hex
    return uuid4().hex
