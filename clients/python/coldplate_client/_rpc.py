"""The calls that both clients offer: each names its stub method, how to ask and how to read the reply, once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf import wrappers_pb2

from coldplate.v1 import (
    device_pb2,
    device_pb2_grpc,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    token_pb2,
    token_pb2_grpc,
)
from coldplate_client import events, requests
from coldplate_client.text import check_text
from coldplate_client.types import Answer, TokenCount

R = TypeVar("R")

# Calls about the service, not to the model, answer at once or not at all.
SHORT_CALL_TIMEOUT_S = 10.0


class Stubs:
    """The services on one channel, synchronous or asynchronous."""

    def __init__(self, channel: Any) -> None:
        self.generation = generation_pb2_grpc.GenerationServiceStub(channel)
        self.token = token_pb2_grpc.TokenServiceStub(channel)
        self.model = model_pb2_grpc.ModelServiceStub(channel)
        self.device = device_pb2_grpc.DeviceServiceStub(channel)
        # grpc.health.v1 has one field a message, so the wrapper types have its wire form.
        self.health = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=wrappers_pb2.StringValue.SerializeToString,
            response_deserializer=wrappers_pb2.Int32Value.FromString,
        )


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """One unary call, ready to be made by either client."""

    method: Callable[[Stubs], Any]
    request: Any
    read: Callable[[Any], R]
    timeout_s: float | None = SHORT_CALL_TIMEOUT_S


def generate(prompt: requests.Prompt, options: requests.GenerateOptions) -> Call[Answer]:
    values: dict[str, object] = dict(options)
    timeout_s = requests.take_timeout(values)
    request = requests.build_generate(prompt, **values)  # type: ignore[arg-type]
    return Call(lambda stubs: stubs.generation.Generate, request, events.read_answer, timeout_s)


def tokenize(text: str | requests.Conversation, model: str, add_special_tokens: bool | None) -> Call[list[int]]:
    request = requests.build_tokenize(text, model=model, add_special_tokens=add_special_tokens)
    return Call(lambda stubs: stubs.token.Tokenize, request, lambda reply: list(reply.token_ids))


def detokenize(token_ids: list[int] | tuple[int, ...], model: str, special_tokens: bool) -> Call[str]:
    request = token_pb2.DetokenizeRequest(
        model=check_text("model", model), token_ids=token_ids, special_tokens=special_tokens
    )
    return Call(lambda stubs: stubs.token.Detokenize, request, lambda reply: str(reply.text))


def count_tokens(text: str | requests.Conversation, model: str) -> Call[TokenCount]:
    return Call(
        lambda stubs: stubs.token.CountTokens,
        requests.build_count(text, model=model),
        lambda reply: TokenCount(tokens=reply.tokens, context_left=reply.context_left),
    )


def models() -> Call[list[model_pb2.Model]]:
    return Call(lambda stubs: stubs.model.ListModels, model_pb2.ListModelsRequest(), lambda reply: list(reply.models))


def status(device: str) -> Call[device_pb2.ServiceStatus]:
    request = device_pb2.GetStatusRequest(device=check_text("device", device))
    return Call(lambda stubs: stubs.device.GetStatus, request, lambda reply: reply.status)


def load() -> Call[device_pb2.Load]:
    return Call(lambda stubs: stubs.device.GetLoad, device_pb2.GetLoadRequest(), lambda reply: reply.load)


def health(service: str) -> Call[bool]:
    return Call(lambda stubs: stubs.health, wrappers_pb2.StringValue(value=service), lambda reply: reply.value == 1)


def watch_request(device: str, min_interval_s: float | None) -> device_pb2.WatchStatusRequest:
    request = device_pb2.WatchStatusRequest(device=check_text("device", device))
    if min_interval_s is not None:
        request.min_interval.CopyFrom(requests.duration("min_interval_s", min_interval_s))
    return request
