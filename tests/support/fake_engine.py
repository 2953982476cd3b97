"""An engine worker whose every message a test writes: EngineService on a Unix socket, inside the test's own loop."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import grpc.aio

from coldplate.internal.v1 import engine_pb2, engine_pb2_grpc
from coldplate.v1 import generation_pb2


def hello(**changes: Any) -> engine_pb2.Hello:
    """A worker with four slots and 256 tokens of cache on ``cpu``."""
    message = engine_pb2.Hello(
        engine="fake",
        model="m",
        vocabulary_size=300,
        max_model_len=256,
        max_num_seqs=4,
        block_size=16,
        kv_cache_tokens=256,
        devices=["cpu"],
        levers=["duty", "max_batch"],
        resume_level=generation_pb2.RESUME_LEVEL_EXACT,
        credit=engine_pb2.Credit(free_slots=4, free_kv_tokens=256),
    )
    message.MergeFrom(engine_pb2.Hello(**changes))
    return message


class FakeEngine(engine_pb2_grpc.EngineServiceServicer):
    """Commands it was sent are in ``commands``; ``say`` sends a message; ``hang_up`` ends the control stream."""

    def __init__(self, socket: Path) -> None:
        self.address = f"unix:{socket}"
        self.commands: asyncio.Queue[engine_pb2.RunRequest] = asyncio.Queue()
        self.hello = hello()
        self.connections = 0
        self._outbox: asyncio.Queue[engine_pb2.RunResponse | None] = asyncio.Queue()
        self._server = grpc.aio.server()
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self, self._server)

    async def __aenter__(self) -> Self:
        self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    async def Run(  # noqa: N802
        self, requests: AsyncIterator[engine_pb2.RunRequest], context: Any
    ) -> AsyncIterator[engine_pb2.RunResponse]:
        self._outbox = asyncio.Queue()
        reader = asyncio.create_task(self._read(requests))
        self.connections += 1
        yield engine_pb2.RunResponse(hello=self.hello)
        while (message := await self._outbox.get()) is not None:
            yield message
        reader.cancel()

    async def _read(self, requests: AsyncIterator[engine_pb2.RunRequest]) -> None:
        async for request in requests:
            self.commands.put_nowait(request)

    async def command(self) -> engine_pb2.RunRequest:
        """The next command, within 5 s."""
        async with asyncio.timeout(5):
            return await self.commands.get()

    def step(
        self,
        tokens: dict[int, int] | None = None,
        finished: tuple[engine_pb2.Finished, ...] = (),
        credit: tuple[int, int, int] = (0, 4, 256),
    ) -> None:
        """One step: a token for each stream; credit is (submits seen, free slots, free KV tokens)."""
        tokens = tokens or {}
        seen, slots, kv_tokens = credit
        message = engine_pb2.Step(
            streams=list(tokens),
            token_ids=list(tokens.values()),
            admitted=[engine_pb2.Admitted(stream=stream) for stream in tokens],
            finished=finished,
            credit=engine_pb2.Credit(submits_seen=seen, free_slots=slots, free_kv_tokens=kv_tokens),
        )
        self._outbox.put_nowait(engine_pb2.RunResponse(step=message))

    def say(self, message: engine_pb2.RunResponse) -> None:
        self._outbox.put_nowait(message)

    def hang_up(self) -> None:
        self._outbox.put_nowait(None)
