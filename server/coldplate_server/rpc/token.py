"""TokenService: the model's tokenizer and chat template, for callers. Needs no worker."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from coldplate.v1 import generation_pb2, token_pb2, token_pb2_grpc
from coldplate_server.errors import InvalidRequest, PromptTooLarge, Violation
from coldplate_server.request import Conversation
from coldplate_server.rpc import convert
from coldplate_server.rpc.validate import Checker, check_conversation, refuse_unserved, unserved_in_conversation
from coldplate_server.text.tokenizer import Tokenizer

T = TypeVar("T")

# Counting a text that does not fit is useful, tokenising without a bound is not.
_CONTEXTS_PER_REQUEST = 4
_MAX_DETOKENIZED_IDS = 1_000_000


class TokenServicer(token_pb2_grpc.TokenServiceServicer):
    """``lookup`` finds a model's tokenizer or raises UnknownModel; the work runs in ``executor``'s threads."""

    def __init__(self, lookup: Callable[[str], Tokenizer], executor: Executor) -> None:
        self._lookup = lookup
        self._executor = executor

    async def Tokenize(self, request: token_pb2.TokenizeRequest, context: Any) -> token_pb2.TokenizeResponse:
        tokenizer = self._lookup(request.model)
        special = request.add_special_tokens if request.HasField("add_special_tokens") else True
        ids = await self._encode(tokenizer, request, special)
        pieces = [tokenizer.piece(index) for index in ids] if request.pieces else []
        return token_pb2.TokenizeResponse(token_ids=ids, pieces=pieces)

    async def Detokenize(self, request: token_pb2.DetokenizeRequest, context: Any) -> token_pb2.DetokenizeResponse:
        tokenizer = self._lookup(request.model)
        _check_ids(request.token_ids, tokenizer.vocabulary_size)
        special, ids = request.special_tokens, list(request.token_ids)
        return token_pb2.DetokenizeResponse(text=await self._run(lambda: tokenizer.decode(ids, special_tokens=special)))

    async def CountTokens(self, request: token_pb2.CountTokensRequest, context: Any) -> token_pb2.CountTokensResponse:
        tokenizer = self._lookup(request.model)
        count = len(await self._encode(tokenizer, request, True))
        return token_pb2.CountTokensResponse(tokens=count, context_left=max(0, tokenizer.max_context_tokens - count))

    async def RenderConversation(
        self, request: token_pb2.RenderConversationRequest, context: Any
    ) -> token_pb2.RenderConversationResponse:
        tokenizer = self._lookup(request.model)
        conversation = _conversation(tokenizer, request.conversation)
        text = await self._run(lambda: tokenizer.render(conversation, field="conversation"))
        return token_pb2.RenderConversationResponse(text=text)

    async def _encode(
        self, tokenizer: Tokenizer, request: token_pb2.TokenizeRequest | token_pb2.CountTokensRequest, special: bool
    ) -> list[int]:
        match request.WhichOneof("input"):
            case None:
                raise InvalidRequest([Violation("input", "is missing: set text or conversation")])
            case "text":
                text = request.text
                _check_size(tokenizer, "text", len(text.encode()))
                return await self._run(lambda: tokenizer.encode(text, add_special_tokens=special))
            case _:
                conversation = _conversation(tokenizer, request.conversation)
                return await self._run(lambda: tokenizer.encode_conversation(conversation, field="conversation"))

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _conversation(tokenizer: Tokenizer, message: generation_pb2.Conversation) -> Conversation:
    check = Checker()
    check_conversation(check, message)
    check.finish()
    refuse_unserved(unserved_in_conversation(message))
    conversation = convert.conversation(message)
    _check_size(tokenizer, "conversation", sum(len(turn.text.encode()) for turn in conversation.messages))
    return conversation


def _check_size(tokenizer: Tokenizer, field: str, size: int) -> None:
    limit = tokenizer.max_prompt_bytes(_CONTEXTS_PER_REQUEST * tokenizer.max_context_tokens)
    if size > limit:
        text = f"has {size} bytes, expected at most {limit}"
        raise PromptTooLarge([Violation(field, text)], size=size, limit=limit)


def _check_ids(ids: Any, vocabulary_size: int) -> None:
    if len(ids) > _MAX_DETOKENIZED_IDS:
        text = f"holds {len(ids)} ids, expected at most {_MAX_DETOKENIZED_IDS}"
        raise InvalidRequest([Violation("token_ids", text)])
    if ids and not (min(ids) >= 0 and max(ids) < vocabulary_size):
        index, token = next((i, token) for i, token in enumerate(ids) if not 0 <= token < vocabulary_size)
        text = f"is {token}, expected 0 to {vocabulary_size - 1}"
        raise InvalidRequest([Violation(f"token_ids[{index}]", text)])
