"""The asynchronous client, on ``grpc.aio``: the same calls as ``Client``, awaited."""

from collections.abc import AsyncIterator
from typing import Any, Self, Unpack

import grpc

from coldplate.v1 import device_pb2, model_pb2
from coldplate_client import _rpc
from coldplate_client._rpc import Call, R, Stubs
from coldplate_client.channel import Tls, channel_options, default_target
from coldplate_client.errors import IncompleteAnswer, from_rpc_error
from coldplate_client.events import Assembly, read_event
from coldplate_client.requests import Conversation, GenerateOptions, Prompt, StreamOptions, build_stream, take_timeout
from coldplate_client.types import Answer, Delta, Event, TokenCount


class AsyncClient:
    """As ``Client``; to be made and used inside one event loop."""

    def __init__(self, target: str | None = None, *, tls: Tls | None = None, retries: bool = True) -> None:
        self.target = target or default_target()
        options = channel_options(self.target, retries)
        self._channel = (
            grpc.aio.secure_channel(self.target, tls.credentials(), options=options)
            if tls
            else grpc.aio.insecure_channel(self.target, options=options)
        )
        self._stubs = Stubs(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls that are running end as cancelled."""
        await self._channel.close()

    async def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Answer:
        """The whole answer to a text, to token ids or to messages."""
        return await self._call(_rpc.generate(prompt, options))

    async def chat(self, messages: Conversation, **options: Unpack[GenerateOptions]) -> Answer:
        """The whole answer to a conversation, laid out by the model's chat template."""
        return await self.generate(messages, **options)

    def stream(self, prompt: Prompt, **options: Unpack[StreamOptions]) -> "AsyncStream":
        """The answer as it is made: ``async with client.stream("hi") as stream: async for event in stream: ...``."""
        values: dict[str, object] = dict(options)
        timeout_s = take_timeout(values)
        request = build_stream(prompt, **values)  # type: ignore[arg-type]
        return AsyncStream(self._stubs.generation.StreamGenerate, request, timeout_s)

    async def tokenize(
        self, text: str | Conversation, *, model: str = "", add_special_tokens: bool | None = None
    ) -> list[int]:
        return await self._call(_rpc.tokenize(text, model, add_special_tokens))

    async def detokenize(
        self, token_ids: list[int] | tuple[int, ...], *, model: str = "", special_tokens: bool = False
    ) -> str:
        return await self._call(_rpc.detokenize(token_ids, model, special_tokens))

    async def count_tokens(self, text: str | Conversation, *, model: str = "") -> TokenCount:
        return await self._call(_rpc.count_tokens(text, model))

    async def models(self) -> list[model_pb2.Model]:
        return await self._call(_rpc.models())

    async def status(self, device: str = "") -> device_pb2.ServiceStatus:
        """The devices, what the governor sees of them and does to them; ``device`` empty means all."""
        return await self._call(_rpc.status(device))

    async def load(self) -> device_pb2.Load:
        """How busy the service is: what a load balancer wants to know."""
        return await self._call(_rpc.load())

    async def health(self, service: str = "") -> bool:
        """Whether ``service`` (empty: the process; else a service, ``model/NAME`` or ``device/npu:0``) is SERVING."""
        return await self._call(_rpc.health(service))

    def watch_status(self, device: str = "", *, min_interval_s: float | None = None) -> "AsyncStatusWatch":
        """The status now and at every change, as an asynchronous context manager and iterator."""
        return AsyncStatusWatch(self._stubs.device.WatchStatus, _rpc.watch_request(device, min_interval_s))

    async def _call(self, call: Call[R]) -> R:
        try:
            return call.read(await call.method(self._stubs)(call.request, timeout=call.timeout_s))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None


class _AsyncServerStream:
    """A server-streaming call that lives inside an ``async with`` block: leaving the block cancels it."""

    def __init__(self, method: Any, request: Any, timeout_s: float | None = None) -> None:
        self._method, self._request, self._timeout_s = method, request, timeout_s
        self._call: Any = None

    async def __aenter__(self) -> Self:
        self._call = self._method(self._request, timeout=self._timeout_s)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Stop the call; the service stops the work within two steps. Harmless when it has ended."""
        if self._call is not None:
            self._call.cancel()

    async def _read(self) -> Any:
        """The next message, None at the end. Raises grpc.aio.AioRpcError."""
        if self._call is None:
            raise RuntimeError("use the stream in an async with block: leaving it cancels the call")
        message = await self._call.read()
        return None if message is grpc.aio.EOF else message


class AsyncStream(_AsyncServerStream):
    """One streamed answer; iterating yields events. Errors carry what had arrived as ``partial``."""

    def __init__(self, method: Any, request: Any, timeout_s: float | None) -> None:
        super().__init__(method, request, timeout_s)
        self._assembly = Assembly()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while (message := await self._next_message()) is not None:
            if (event := read_event(message)) is not None:
                self._assembly.add(event)
                return event
        if not self._assembly.complete:
            raise IncompleteAnswer("the stream ended without its last event", partial=self.partial)
        raise StopAsyncIteration

    @property
    def partial(self) -> Answer:
        """What has arrived so far."""
        return self._assembly.answer()

    async def texts(self) -> AsyncIterator[str]:
        """The pieces of text of the first choice as they come."""
        async for event in self:
            if isinstance(event, Delta) and event.text and not event.choice_index:
                yield event.text

    async def text(self) -> str:
        """Read to the end and return the whole text of the first choice."""
        return (await self.answer()).text

    async def answer(self) -> Answer:
        """Read to the end and return the whole answer."""
        async for _ in self:
            pass
        return self.partial

    async def _next_message(self) -> Any:
        try:
            return await self._read()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self.partial) from None


class AsyncStatusWatch(_AsyncServerStream):
    """Statuses of the service as they change."""

    def __aiter__(self) -> AsyncIterator[device_pb2.ServiceStatus]:
        return self

    async def __anext__(self) -> device_pb2.ServiceStatus:
        try:
            message = await self._read()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        if message is None:
            raise StopAsyncIteration
        return message.status  # type: ignore[no-any-return]
