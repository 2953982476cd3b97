"""The asynchronous client: the same behaviour as the synchronous one, on one event loop."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from client.fake_server import FakeServer
from coldplate_client import Aborted, AsyncClient, Completed, Delta, IncompleteAnswer, InvalidRequest, Resume


@pytest.fixture
async def aio_client(server: FakeServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.target) as connected:
        yield connected


async def test_generate_and_chat(aio_client: AsyncClient) -> None:
    assert (await aio_client.generate("say hi")).text == "hi"
    assert (await aio_client.chat([{"role": "user", "text": "say yes"}])).text == "yes"


async def test_stream_events_and_helpers(aio_client: AsyncClient) -> None:
    async with aio_client.stream("say hi") as stream:
        events = [event async for event in stream]
    assert isinstance(events[-1], Completed)
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "hi"
    async with aio_client.stream("say hi") as stream:
        assert [text async for text in stream.texts()] == ["h", "i"]
    async with aio_client.stream("say hi") as stream:
        assert await stream.text() == "hi"


async def test_leaving_the_block_cancels_the_call(aio_client: AsyncClient, server: FakeServer) -> None:
    async with aio_client.stream("hang") as stream:
        async for event in stream:
            if isinstance(event, Delta):
                break
        assert not server.seen.ended.is_set()
    assert await asyncio.to_thread(server.seen.ended.wait, 5)


async def test_cancelling_the_task_cancels_the_call(aio_client: AsyncClient, server: FakeServer) -> None:
    reached = asyncio.Event()

    async def read() -> None:
        async with aio_client.stream("hang") as stream:
            async for event in stream:
                if isinstance(event, Delta):
                    reached.set()

    task = asyncio.create_task(read())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.seen.ended.wait, 5)


async def test_errors_are_typed_and_keep_what_came(aio_client: AsyncClient) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await aio_client.generate("fail INVALID_ARGUMENT")
    assert refused.value.violations[0].field == "sampling.top_p"
    async with aio_client.stream("cut ABORTED") as stream:
        with pytest.raises(Aborted) as cut:
            await stream.answer()
    assert cut.value.partial is not None
    assert cut.value.partial.resume() == Resume((97, 98), seed=7)
    async with aio_client.stream("half") as stream:
        with pytest.raises(IncompleteAnswer):
            await stream.answer()


async def test_lone_surrogates_are_named(aio_client: AsyncClient) -> None:
    with pytest.raises(ValueError, match=r"^prompt: .*lone surrogate"):
        await aio_client.generate("a\ud800b")


async def test_refusals_before_the_first_message_are_retried(aio_client: AsyncClient, server: FakeServer) -> None:
    server.refuse_first = 2
    async with aio_client.stream("say ok") as stream:
        assert await stream.text() == "ok"
    assert server.seen.attempts == 3


async def test_token_and_status_calls(aio_client: AsyncClient, server: FakeServer) -> None:
    assert await aio_client.tokenize("ab") == [97, 98]
    assert await aio_client.detokenize([97]) == "a"
    assert (await aio_client.count_tokens("abc")).tokens == 3
    assert (await aio_client.models())[0].name == "demo"
    assert len((await aio_client.status()).devices) == 2
    assert (await aio_client.load()).running == 3
    assert await aio_client.health("coldplate.v1.GenerationService")
    async with aio_client.watch_status() as updates:
        assert (await anext(updates)).running == 3
    assert await asyncio.to_thread(server.seen.ended.wait, 5)
