"""The synchronous client."""

from collections.abc import Iterator
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


class Client:
    """A connection to a Coldplate service, usable from several threads.

    ``target`` is ``host:port`` or ``unix:/path``; default ``$COLDPLATE_SERVER``, else 127.0.0.1:50051. It
    connects at the first call. With ``retries``, calls refused before their first message are tried up to four times.
    Calls raise subclasses of ``ColdplateError``, and ValueError or TypeError for arguments that cannot be sent.
    """

    def __init__(self, target: str | None = None, *, tls: Tls | None = None, retries: bool = True) -> None:
        self.target = target or default_target()
        options = channel_options(self.target, retries)
        self._channel = (
            grpc.secure_channel(self.target, tls.credentials(), options=options)
            if tls
            else grpc.insecure_channel(self.target, options=options)
        )
        self._stubs = Stubs(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; calls that are running end as cancelled."""
        self._channel.close()

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Answer:
        """The whole answer to a text, to token ids or to messages."""
        return self._call(_rpc.generate(prompt, options))

    def chat(self, messages: Conversation, **options: Unpack[GenerateOptions]) -> Answer:
        """The whole answer to a conversation, laid out by the model's chat template."""
        return self.generate(messages, **options)

    def stream(self, prompt: Prompt, **options: Unpack[StreamOptions]) -> "Stream":
        """The answer as it is made: ``with client.stream("hi") as stream: for event in stream: ...``."""
        values: dict[str, object] = dict(options)
        timeout_s = take_timeout(values)
        request = build_stream(prompt, **values)  # type: ignore[arg-type]
        return Stream(self._stubs.generation.StreamGenerate, request, timeout_s)

    def tokenize(
        self, text: str | Conversation, *, model: str = "", add_special_tokens: bool | None = None
    ) -> list[int]:
        return self._call(_rpc.tokenize(text, model, add_special_tokens))

    def detokenize(
        self, token_ids: list[int] | tuple[int, ...], *, model: str = "", special_tokens: bool = False
    ) -> str:
        return self._call(_rpc.detokenize(token_ids, model, special_tokens))

    def count_tokens(self, text: str | Conversation, *, model: str = "") -> TokenCount:
        return self._call(_rpc.count_tokens(text, model))

    def models(self) -> list[model_pb2.Model]:
        return self._call(_rpc.models())

    def status(self, device: str = "") -> device_pb2.ServiceStatus:
        """The devices, what the governor sees of them and does to them; ``device`` empty means all."""
        return self._call(_rpc.status(device))

    def load(self) -> device_pb2.Load:
        """How busy the service is: what a load balancer wants to know."""
        return self._call(_rpc.load())

    def health(self, service: str = "") -> bool:
        """Whether ``service`` (empty: the process; else a service, ``model/NAME`` or ``device/npu:0``) is SERVING."""
        return self._call(_rpc.health(service))

    def watch_status(self, device: str = "", *, min_interval_s: float | None = None) -> "StatusWatch":
        """The status now and at every change: ``with client.watch_status() as updates: for status in updates: ...``."""
        return StatusWatch(self._stubs.device.WatchStatus, _rpc.watch_request(device, min_interval_s))

    def _call(self, call: Call[R]) -> R:
        try:
            return call.read(call.method(self._stubs)(call.request, timeout=call.timeout_s))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None


class _ServerStream:
    """A server-streaming call that lives inside a ``with`` block: leaving the block cancels it.

    An abandoned gRPC call would run to its end on the server, so iterating outside a block is refused.
    """

    def __init__(self, method: Any, request: Any, timeout_s: float | None = None) -> None:
        self._method, self._request, self._timeout_s = method, request, timeout_s
        self._call: Any = None

    def __enter__(self) -> Self:
        self._call = self._method(self._request, timeout=self._timeout_s)
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Stop the call, from any thread; the service stops the work within two steps. Harmless when it has ended."""
        if self._call is not None:
            self._call.cancel()

    def _read(self) -> Any:
        """The next message, None at the end. Raises grpc.RpcError."""
        if self._call is None:
            raise RuntimeError("use the stream in a with block: leaving it cancels the call")
        return next(self._call, None)


class Stream(_ServerStream):
    """One streamed answer; iterating yields events. Errors carry what had arrived as ``partial``."""

    def __init__(self, method: Any, request: Any, timeout_s: float | None) -> None:
        super().__init__(method, request, timeout_s)
        self._assembly = Assembly()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while (message := self._next_message()) is not None:
            if (event := read_event(message)) is not None:
                self._assembly.add(event)
                return event
        if not self._assembly.complete:
            raise IncompleteAnswer("the stream ended without its last event", partial=self.partial)
        raise StopIteration

    @property
    def partial(self) -> Answer:
        """What has arrived so far."""
        return self._assembly.answer()

    def texts(self) -> Iterator[str]:
        """The pieces of text of the first choice as they come."""
        return (event.text for event in self if isinstance(event, Delta) and event.text and not event.choice_index)

    def text(self) -> str:
        """Read to the end and return the whole text of the first choice."""
        return self.answer().text

    def answer(self) -> Answer:
        """Read to the end and return the whole answer."""
        for _ in self:
            pass
        return self.partial

    def _next_message(self) -> Any:
        try:
            return self._read()
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.partial) from None


class StatusWatch(_ServerStream):
    """Statuses of the service as they change."""

    def __iter__(self) -> Iterator[device_pb2.ServiceStatus]:
        return self

    def __next__(self) -> device_pb2.ServiceStatus:
        try:
            message = self._read()
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        if message is None:
            raise StopIteration
        return message.status  # type: ignore[no-any-return]
