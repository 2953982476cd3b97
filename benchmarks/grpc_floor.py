"""A server that does nothing but write: what a message costs on this machine before any of our code.

Run as a child by overhead.py. Each call streams ``message_count`` messages of a delta's size, all calls in step, one
message each per ``step_s``, as an engine's steps would have it. Prints ``ready`` once it listens.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from coldplate.transport import server_options
from coldplate.v1 import generation_pb2 as pb


class Beat:
    """Wakes every waiting stream once a step."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    async def wait(self) -> None:
        await self._next.wait()

    async def run(self, step_s: float) -> None:
        while True:
            await asyncio.sleep(step_s)
            self._next.set()
            self._next = asyncio.Event()


async def serve(address: str, message_count: int, step_s: float) -> None:
    beat = Beat()
    delta = pb.StreamGenerateResponse(delta=pb.Delta(first_token_index=100, token_count=1, text=" token"))

    async def stream(request: bytes, context: Any) -> AsyncIterator[pb.StreamGenerateResponse]:
        for _ in range(message_count):
            await beat.wait()
            yield delta

    handler = grpc.unary_stream_rpc_method_handler(
        stream, response_serializer=pb.StreamGenerateResponse.SerializeToString
    )
    name = "coldplate.v1.GenerationService"
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"StreamGenerate": handler}),))
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await beat.run(step_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    args = parser.parse_args()
    import uvloop

    uvloop.run(serve(args.listen, args.messages, args.step_s))


if __name__ == "__main__":
    main()
