"""A real engine worker process on a Unix socket, spoken to as the server does."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from coldplate.internal.v1 import engine_pb2 as pb
from coldplate.internal.v1 import engine_pb2_grpc
from support.processes import Process

GREEDY = pb.SamplingParams(temperature=0, top_p=1)
_PATIENCE_S = 40.0


class WorkerGone(Exception):
    """The worker ended the control stream."""


class ControlStream:
    """One connection to a worker; ``tokens`` and ``finished`` fill up as steps are read."""

    def __init__(self, socket: Path, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}")
        self._call: Any = engine_pb2_grpc.EngineServiceStub(self._channel).Run(wait_for_ready=True)
        self.loading: list[str] = []
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, pb.Finished] = {}
        self.last = pb.Step()
        self.steps = 0

    async def hello(self) -> pb.Hello:
        while True:
            response = await self._read()
            if response.HasField("hello"):
                return response.hello
            self.loading.append(response.loading.phase)

    async def loading_event(self) -> pb.Loading:
        """Read one loading message."""
        loading = (await self._read()).loading
        self.loading.append(loading.phase)
        return loading

    async def submit(self, stream: int, prompt: Iterable[int], max_tokens: int, **options: Any) -> None:
        options.setdefault("sampling", GREEDY)
        message = pb.Submit(stream=stream, prompt_token_ids=list(prompt), max_tokens=max_tokens, **options)
        await self._call.write(pb.RunRequest(submit=message))

    async def send(self, **command: Any) -> None:
        await self._call.write(pb.RunRequest(**command))

    async def step(self) -> pb.Step:
        """Read one step message."""
        step = (await self._read()).step
        self.last = step
        self.steps += 1
        for stream, token in zip(step.streams, step.token_ids, strict=True):
            self.tokens.setdefault(stream, []).append(token)
        for item in step.finished:
            self.finished[item.stream] = item
        return step

    async def until_finished(self, *streams: int) -> None:
        while not set(streams) <= set(self.finished):
            await self.step()

    async def until_closed(self) -> None:
        try:
            while True:
                await self.step()
        except WorkerGone:
            return

    async def _read(self) -> pb.RunResponse:
        response = await asyncio.wait_for(self._call.read(), self._patience_s)
        if response is grpc.aio.EOF:
            raise WorkerGone(str(await self._call.code()))
        assert isinstance(response, pb.RunResponse)
        return response

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def start_worker(model: Path, folder: Path, *flags: str, device: str = "cpu") -> Process:
    """Listens on ``folder/engine.sock``."""
    args = ["--model", str(model), "--device", device, "--listen", f"unix:{folder / 'engine.sock'}", *flags]
    return Process("coldplate-engine", args, folder)


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[ControlStream, pb.Hello]]:
    async with ControlStream(folder / "engine.sock") as stream:
        yield stream, await stream.hello()
