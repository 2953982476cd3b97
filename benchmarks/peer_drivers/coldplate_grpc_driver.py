"""Our whole service, server and worker as users run them, called over gRPC from this process."""

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from protocol import Facts, Figures, Job, Prompts, Stopwatch, serve

from coldplate.transport import client_options
from coldplate.v1 import generation_pb2 as pb
from coldplate.v1 import generation_pb2_grpc

START_S = 300


class ColdplateGrpcDriver:
    def __init__(self, job: Job) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="coldplate-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"
        engine = {
            "threads": job["threads"],
            "max-num-seqs": job["streams"],
            "max-model-len": job["context"],
            **{str(key).replace("_", "-"): value for key, value in job["engine"].items()},
        }
        self._precision = str(job["dtype"])
        self._server = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("coldplate-server")),
                f"--model=m={job['model']}",
                f"--listen={self._address}",
                "--metrics-listen=",
                f"--control-socket={self._folder.name}/control.sock",
                *(f"--engine-arg=--{name}={value}" for name, value in engine.items()),
            ]
        )
        self._await_ready()

    def facts(self) -> Facts:
        return {"version": version("coldplate"), "precision": self._precision}

    def decode(self, prompts: Prompts, new_tokens: int) -> Figures:
        return asyncio.run(self._decode(prompts, new_tokens))

    def prefill(self, prompt: list[int]) -> Figures:
        return {"seconds": self.decode([prompt], 1)["first_token_s"]}

    def close(self) -> None:
        self._server.terminate()
        self._server.wait(60)
        self._folder.cleanup()

    async def _decode(self, prompts: Prompts, new_tokens: int) -> Figures:
        async with grpc.aio.insecure_channel(self._address, options=client_options()) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            await channel.channel_ready()
            watch = Stopwatch(len(prompts))
            await asyncio.gather(*(self._one(stub, watch, prompt, new_tokens) for prompt in prompts))
            return watch.result()

    @staticmethod
    async def _one(
        stub: generation_pb2_grpc.GenerationServiceStub, watch: Stopwatch, prompt: list[int], new_tokens: int
    ) -> None:
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=prompt),
            sampling=pb.Sampling(temperature=0),
            stopping=pb.Stopping(max_tokens=new_tokens, ignore_end_of_text=True),
            reporting=pb.Reporting(token_ids=True),
        )
        stream = object()
        async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request)):
            if event.HasField("delta") and event.delta.token_ids:
                now = time.perf_counter()
                watch.took(stream, len(event.delta.token_ids), now)
                watch.step_done(now)

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_S
        with grpc.insecure_channel(self._address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while time.monotonic() < deadline:
                if self._server.poll() is not None:
                    raise SystemExit(f"the server ended with code {self._server.returncode}")
                try:
                    answer = stub.Check(health_pb2.HealthCheckRequest(service="model/m"), timeout=1)
                except grpc.RpcError:
                    answer = None
                if answer is not None and answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
                time.sleep(0.1)
        raise SystemExit("the server was not ready in time")


if __name__ == "__main__":
    serve(ColdplateGrpcDriver)
