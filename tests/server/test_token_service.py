"""TokenService and both reflection versions, through a real channel."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from coldplate.v1 import generation_pb2, token_pb2, token_pb2_grpc
from coldplate_server.errors import UnknownModel
from coldplate_server.rpc.interceptor import RequestInterceptor
from coldplate_server.rpc.reflection import add_reflection
from coldplate_server.rpc.token import TokenServicer
from coldplate_server.text.tokenizer import Tokenizer
from support import text_models, tokenizers

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    chat = tokenizers.TokenizerSpec(chat_template=tokenizers.ALTERNATING)
    start = tokenizers.TokenizerSpec(adds_start=True)
    folder = tmp_path_factory.mktemp("models")
    return {"": text_models.load(folder / "chat", chat), "start": text_models.load(folder / "start", start)}


@pytest.fixture
async def channel(models: dict[str, Tokenizer]) -> AsyncIterator[grpc.aio.Channel]:
    def lookup(name: str) -> Tokenizer:
        if name not in models:
            raise UnknownModel("no such model", model=name)
        return models[name]

    server = grpc.aio.server(interceptors=[RequestInterceptor()])
    with ThreadPoolExecutor(1) as executor:
        token_pb2_grpc.add_TokenServiceServicer_to_server(TokenServicer(lookup, executor), server)
        add_reflection(server, ["coldplate.v1.TokenService"])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
        await server.stop(None)


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return token_pb2_grpc.TokenServiceStub(channel)


def conversation(*roles: str, **fields: Any) -> generation_pb2.Conversation:
    return generation_pb2.Conversation(
        messages=[generation_pb2.Message(role=role, text="hi") for role in roles], **fields
    )


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_tokenize_and_back(stub: Any) -> None:
    reply = await stub.Tokenize(token_pb2.TokenizeRequest(text="hé<|im_end|>", pieces=True))
    assert bytes(reply.token_ids).decode() == "hé<|im_end|>"
    assert reply.pieces[0] == "h"
    assert len(reply.pieces) == len(reply.token_ids)
    assert (await stub.Detokenize(token_pb2.DetokenizeRequest(token_ids=reply.token_ids))).text == "hé<|im_end|>"


async def test_tokens_around_plain_text_are_a_choice(stub: Any) -> None:
    request = token_pb2.TokenizeRequest(model="start", text="a")
    assert (await stub.Tokenize(request)).token_ids == [tokenizers.IM_START_ID, ord("a")]
    request.add_special_tokens = False
    assert (await stub.Tokenize(request)).token_ids == [ord("a")]


async def test_special_tokens_appear_when_asked_for(stub: Any) -> None:
    request = token_pb2.DetokenizeRequest(token_ids=[ord("a"), tokenizers.IM_END_ID])
    assert (await stub.Detokenize(request)).text == "a"
    request.special_tokens = True
    assert (await stub.Detokenize(request)).text == "a<|im_end|>"


async def test_counting_tells_what_the_context_has_left(stub: Any) -> None:
    reply = await stub.CountTokens(token_pb2.CountTokensRequest(text="abc"))
    assert (reply.tokens, reply.context_left) == (3, 253)
    reply = await stub.CountTokens(token_pb2.CountTokensRequest(text="a" * 300))
    assert (reply.tokens, reply.context_left) == (300, 0)


async def test_a_conversation_is_rendered_and_counted_alike(stub: Any) -> None:
    rendered = await stub.RenderConversation(token_pb2.RenderConversationRequest(conversation=conversation("user")))
    assert rendered.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    tokens = (await stub.Tokenize(token_pb2.TokenizeRequest(conversation=conversation("user")))).token_ids
    text = await stub.Detokenize(token_pb2.DetokenizeRequest(token_ids=tokens, special_tokens=True))
    assert text.text == rendered.text
    assert (await stub.CountTokens(token_pb2.CountTokensRequest(conversation=conversation("user")))).tokens == len(
        tokens
    )


@pytest.mark.parametrize(
    ("method", "request_", "code", "words"),
    [
        ("Tokenize", token_pb2.TokenizeRequest(), Code.INVALID_ARGUMENT, "input"),
        ("Tokenize", token_pb2.TokenizeRequest(text="a" * 100_000), Code.INVALID_ARGUMENT, "100000 bytes"),
        ("CountTokens", token_pb2.CountTokensRequest(model="x", text="a"), Code.NOT_FOUND, "no such model"),
        (
            "CountTokens",
            token_pb2.CountTokensRequest(conversation=conversation("user", "user")),
            Code.INVALID_ARGUMENT,
            "conversation: the model's chat template refuses it: Conversation roles must alternate",
        ),
        ("Detokenize", token_pb2.DetokenizeRequest(token_ids=[1, -1]), Code.INVALID_ARGUMENT, "token_ids[1]"),
        ("Detokenize", token_pb2.DetokenizeRequest(token_ids=[261]), Code.INVALID_ARGUMENT, "0 to 260"),
        (
            "RenderConversation",
            token_pb2.RenderConversationRequest(),
            Code.INVALID_ARGUMENT,
            "conversation.messages",
        ),
        (
            "RenderConversation",
            token_pb2.RenderConversationRequest(
                conversation=conversation("user", tools=[generation_pb2.Tool(name="f")])
            ),
            Code.UNIMPLEMENTED,
            "conversation.tools",
        ),
        (
            "RenderConversation",
            token_pb2.RenderConversationRequest(model="start", conversation=conversation("user")),
            Code.FAILED_PRECONDITION,
            "chat template",
        ),
    ],
)
async def test_refusals(stub: Any, method: str, request_: Any, code: grpc.StatusCode, words: str) -> None:
    error = await refused(getattr(stub, method)(request_))
    assert error.code() is code
    assert words in error.details()


async def test_tokenizing_runs_off_the_event_loop(
    stub: Any, models: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    encode = models[""].encode

    def spied(text: str, **options: bool) -> list[int]:
        threads.append(threading.get_ident())
        return encode(text, **options)

    monkeypatch.setattr(models[""], "encode", spied)
    await stub.Tokenize(token_pb2.TokenizeRequest(text="a"))
    assert threads
    assert threads[0] != threading.get_ident()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_both_reflection_versions_list_and_describe(channel: grpc.aio.Channel, version: str) -> None:
    method = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="coldplate.v1.TokenizeRequest"),
    ]
    async with asyncio.timeout(5):
        listed, described = [reply async for reply in method(iter(requests))]
    names = {service.name for service in listed.list_services_response.service}
    assert {"coldplate.v1.TokenService", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= names
    assert described.file_descriptor_response.file_descriptor_proto
