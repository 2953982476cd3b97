"""What the service costs: tokens/s of the whole path against the bare engine loop with detokenising.

Both run the same model, the same batch and the same number of threads on this machine, in turn, round by round, so
that a machine whose speed drifts is fair to both. Prints a table, the server's CPU time per token, beside it what gRPC
alone takes on this machine (a server that only writes as many messages at the same pace), and ``ratio N`` last: the
lower of the medians at 8 and at 32 streams. Exits 1 when the ratio is below its floor or the server above its budget.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coldplate.transport import client_options
from coldplate.v1 import generation_pb2 as pb
from coldplate.v1 import generation_pb2_grpc
from coldplate_engine.importing.demo_model import ensure_demo_model

RATIO_FLOOR = 0.88
CPU_BUDGET_US = 60.0
STREAMS = (8, 32)
PROMPT_TOKENS = 16
FLOOR_MESSAGES = 24
SEED = 20_260
MAX_PROMPT_ID = 200


@dataclass
class Run:
    seconds: float
    tokens: int

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Alone:
    """An engine without the service, in a process of its own that answers a line with a line; ``what`` is its name."""

    def __init__(self, what: str, command: list[str], env: dict[str, str] | None = None) -> None:
        self._what = what
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self._read()

    def run(self, prompts: list[list[int]], max_tokens: int) -> Run:
        assert self._process.stdin is not None
        print(json.dumps({"prompts": prompts, "max_tokens": max_tokens}), file=self._process.stdin, flush=True)
        answer = self._read()
        return Run(answer["seconds"], int(answer["tokens"]))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._what} ended with code {self._process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer


def bare_loop(model: Path) -> Alone:
    """Our engine loop."""
    command = [sys.executable, str(Path(__file__).with_name("bare_engine.py")), "--model", str(model)]
    return Alone("the bare engine", [*command, "--max-num-seqs", str(max(STREAMS))])


class Whole:
    """Server and worker as users run them, called over gRPC from this process."""

    def __init__(self, address: str, pid: int) -> None:
        self._address = address
        self._server = psutil.Process(pid)

    def cpu_s(self) -> float:
        times = self._server.cpu_times()
        return float(times.user + times.system)

    async def run(self, prompts: list[list[int]], max_tokens: int) -> Run:
        async with grpc.aio.insecure_channel(self._address, options=client_options()) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            await channel.channel_ready()
            start = time.perf_counter()
            counts = await asyncio.gather(*(self._one(stub, prompt, max_tokens) for prompt in prompts))
            return Run(time.perf_counter() - start, sum(counts))

    async def _one(self, stub: generation_pb2_grpc.GenerationServiceStub, prompt: list[int], max_tokens: int) -> int:
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=prompt),
            sampling=pb.Sampling(temperature=0),
            stopping=pb.Stopping(max_tokens=max_tokens, ignore_end_of_text=True),
        )
        tokens = 0
        async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request)):
            if event.HasField("delta"):
                tokens += event.delta.token_count
        return tokens


async def grpc_alone_us(streams: int, step_s: float, port: int) -> float:
    """CPU time per message, in microseconds, of a server that does nothing but write at this pace."""
    address = f"127.0.0.1:{port}"
    command = [str(Path(__file__).with_name("grpc_floor.py")), "--listen", address]
    command += ["--messages", str(FLOOR_MESSAGES), "--step-s", str(step_s)]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        server = psutil.Process(process.pid)
        async with grpc.aio.insecure_channel(address, options=client_options()) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            await channel.channel_ready()
            before = sum(server.cpu_times()[:2])
            await asyncio.gather(*(_read_all(stub) for _ in range(streams)))
            return float(sum(server.cpu_times()[:2]) - before) / (streams * FLOOR_MESSAGES) * 1e6
    finally:
        process.terminate()
        await process.wait()


async def _read_all(stub: generation_pb2_grpc.GenerationServiceStub) -> None:
    async for _ in stub.StreamGenerate(pb.StreamGenerateRequest()):
        pass


@contextmanager
def service(model: Path, port: int) -> Iterator[Whole]:
    address = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "server.log").open("w+") as log:
        command = [sys.executable, "-m", "coldplate_server.main", "--model", str(model), "--listen", address]
        command += ["--metrics-listen", "", "--control-socket", f"{folder}/control.sock"]
        process = subprocess.Popen(
            [*command, f"--engine-arg=--max-num-seqs={max(STREAMS)}"], stdout=log, stderr=log, start_new_session=True
        )
        try:
            with grpc.insecure_channel(address) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                request = health_pb2.HealthCheckRequest(service="coldplate.v1.GenerationService")
                for answer in health.Watch(request, wait_for_ready=True, timeout=300):
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        break
            yield Whole(address, process.pid)
        except grpc.RpcError:
            log.seek(0)
            print(log.read(), file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait(60)


def measure(model: Path, rounds: int, max_tokens: int, port: int) -> int:
    rng = random.Random(SEED)
    ratios: dict[int, list[float]] = {streams: [] for streams in STREAMS}
    cpu_us: dict[int, list[float]] = {streams: [] for streams in STREAMS}
    alone_cpu_us: dict[int, list[float]] = {streams: [] for streams in STREAMS}
    bare = bare_loop(model)
    try:
        with service(model, port) as whole:
            for number in range(rounds + 1):
                for streams in STREAMS:
                    prompts = [[rng.randrange(MAX_PROMPT_ID) for _ in range(PROMPT_TOKENS)] for _ in range(streams)]
                    alone = bare.run(prompts, max_tokens)
                    before = whole.cpu_s()
                    served = asyncio.run(whole.run(prompts, max_tokens))
                    cpu = (whole.cpu_s() - before) / served.tokens * 1e6
                    if served.tokens != alone.tokens or served.tokens != streams * max_tokens:
                        raise SystemExit(f"token counts differ: bare {alone.tokens}, served {served.tokens}")
                    alone_us = asyncio.run(grpc_alone_us(streams, served.seconds / max_tokens, port + 1))
                    label = "warm-up" if number == 0 else f"round {number}"
                    print(
                        f"{label}: {streams:2} streams  bare {alone.rate:7.1f} tokens/s  whole path {served.rate:7.1f}"
                        f"  ratio {served.rate / alone.rate:.3f}"
                        f"  server CPU {cpu:5.1f} us/token, gRPC alone {alone_us:5.1f}",
                        flush=True,
                    )
                    if number:
                        ratios[streams].append(served.rate / alone.rate)
                        cpu_us[streams].append(cpu)
                        alone_cpu_us[streams].append(alone_us)
    finally:
        bare.close()
    return report(ratios, cpu_us, alone_cpu_us)


def report(ratios: dict[int, list[float]], cpu_us: dict[int, list[float]], alone_cpu_us: dict[int, list[float]]) -> int:
    medians = {streams: statistics.median(values) for streams, values in ratios.items()}
    for streams in STREAMS:
        print(
            f"{streams:2} streams: ratio median {medians[streams]:.3f} "
            f"(min {min(ratios[streams]):.3f}, max {max(ratios[streams]):.3f}), "
            f"server CPU median {statistics.median(cpu_us[streams]):.1f} us/token, "
            f"gRPC alone {statistics.median(alone_cpu_us[streams]):.1f} us/message"
        )
    ratio = min(medians.values())
    cpu = statistics.median(cpu_us[max(STREAMS)])
    print(f"floor {RATIO_FLOOR}, CPU budget {CPU_BUDGET_US:g} us/token at {max(STREAMS)} streams: measured {cpu:.1f}")
    print(f"ratio {ratio:.3f}")
    return 0 if ratio >= RATIO_FLOOR and cpu <= CPU_BUDGET_US else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the demo model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--port", type=int, default=50_951)
    args = parser.parse_args()
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    model = args.model or ensure_demo_model(progress=lambda phase, share: None)
    return measure(model, args.rounds, args.max_tokens, args.port)


if __name__ == "__main__":
    sys.exit(main())
