"""A real server over modelled chips of a simulated board, and callers that keep it busy and check every token.

Modelled chips take as long for a step as such a chip would and say scripted tokens: eight of them run on two cores.
What is measured is the service, its pacing and its failures, not a model.
"""

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from coldplate.transport import client_options
from coldplate.v1 import generation_pb2 as pb
from coldplate.v1 import generation_pb2_grpc
from coldplate_client.client import Client
from coldplate_client.errors import ColdplateError
from coldplate_engine.devices.script import Script, script_of
from coldplate_engine.weights.config import ModelConfig
from coldplate_governor.board.client import BoardClient, BoardUnreachable

MODEL_SIZE = "qwen3-8b-w8a8"
PROMPT_TOKENS = 64
COOL = ("--ambient-celsius=-20",)
_START_S = 180.0
_MODULES = {
    "board": "coldplate_governor.board.main",
    "server": "coldplate_server.main",
    "governor": "coldplate_governor.main",
}


@dataclass(frozen=True, slots=True)
class Service:
    """Where it answers, and the folder with its logs."""

    address: str
    board: str
    control: str
    folder: Path


@contextmanager
def service(
    model: Path,
    chips: int,
    *,
    port: int,
    board_args: Sequence[str] = COOL,
    governor: bool = False,
    engine_args: Sequence[str] = (),
    size: str = MODEL_SIZE,
) -> Iterator[Service]:
    """A board with ``chips`` chips, a server with a modelled worker on each and, if wanted, the governor."""
    with tempfile.TemporaryDirectory(prefix="cp-") as name:
        made = Service(f"127.0.0.1:{port}", f"unix:{name}/b.sock", f"unix:{name}/c.sock", Path(name))
        workers = [f"--worker=sim:{made.board}#npu:{chip},modelled={size}" for chip in range(chips)]
        args = ["--model", str(model), "--listen", made.address, "--metrics-listen", "", *workers]
        args += ["--control-socket", made.control.removeprefix("unix:")]
        args += ["--governor", "auto" if governor else "optional"]
        args += [f"--engine-arg={argument}" for argument in engine_args]
        try:
            with ExitStack() as stack:
                board = _start(stack, made, "board", ["--count", str(chips), "--listen", made.board, *board_args])
                with BoardClient(made.board) as reader:
                    _wait("the board", board, lambda: _answers(reader))
                server = _start(stack, made, "server", args)
                with Client(made.address, retries=False) as client:
                    _wait("the server", server, lambda: _serves(client, chips))
                if governor:
                    _start(
                        stack, made, "governor", ["--control", made.control, "--board", made.board, *_devices(chips)]
                    )
                yield made
        except BaseException:
            for log in sorted(made.folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}", file=sys.stderr)
            raise


def _devices(chips: int) -> list[str]:
    return [f"--device=npu:{chip}" for chip in range(chips)]


def _start(stack: ExitStack, made: Service, part: str, args: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a part; leaving ``stack`` ends it."""
    home = str(made.folder)
    environment = {**os.environ, "XDG_RUNTIME_DIR": home, "XDG_STATE_HOME": home, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    log = stack.enter_context((made.folder / f"{part}.log").open("wb"))
    process = subprocess.Popen(
        [sys.executable, "-m", _MODULES[part], *args], stdout=log, stderr=log, env=environment, start_new_session=True
    )

    def end() -> None:
        process.terminate()
        process.wait(60)

    stack.callback(end)
    return process


def _serves(client: Client, chips: int) -> bool:
    with suppress(ColdplateError):
        return sum(device.kv_tokens_total > 0 for device in client.status().devices) == chips
    return False


def _answers(board: BoardClient) -> bool:
    try:
        return bool(board.describe())
    except BoardUnreachable:
        return False


def _wait(what: str, process: subprocess.Popen[bytes], probe: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_S
    while not probe():
        if process.poll() is not None:
            raise SystemExit(f"{what} ended with code {process.returncode}")
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} does not come up")
        time.sleep(0.2)


@dataclass(slots=True)
class Ended:
    """How one call ended: its status, and whether its tokens were a true beginning of the script's, or all of it."""

    at_s: float
    status: str
    tokens: int
    true: bool
    whole: bool


@dataclass(slots=True)
class Tally:
    """All that callers saw. Times are monotonic seconds; ``gaps_s`` are between two deltas of a stream."""

    deltas: list[tuple[float, int]] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)

    def tokens(self, since_s: float, until_s: float) -> int:
        return sum(count for at, count in self.deltas if since_s <= at < until_s)

    def statuses(self, since_s: float = 0.0) -> dict[str, int]:
        return dict(Counter(end.status for end in self.ended if end.at_s >= since_s))

    def wrong_ends(self) -> list[Ended]:
        """Streams with tokens that are not the script's, or that look complete and are not."""
        return [end for end in self.ended if not end.true or (end.status == "OK") != end.whole]


class Callers:
    """``streams`` callers at all times, for as long as it runs; each asks again when it is answered or refused."""

    def __init__(self, address: str, model: Path, streams: int, max_tokens: int, seed: int = 20_261) -> None:
        config = ModelConfig(model)
        self._script: Script = script_of(model, config.count("vocab_size"), config.end_of_text_ids)
        self._address = address
        self._streams = streams
        self._max_tokens = max_tokens
        self._seed = seed
        self._over = False
        self.tally = Tally()

    async def run(self, during: "asyncio.Future[None] | asyncio.Task[None]") -> Tally:
        """Call until ``during`` is done."""
        async with grpc.aio.insecure_channel(self._address, options=client_options()) as channel:
            await channel.channel_ready()
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            callers = [asyncio.create_task(self._caller(stub, number)) for number in range(self._streams)]
            try:
                await during
            finally:
                self._over = True
                for caller in callers:
                    caller.cancel()
                await asyncio.gather(*callers, return_exceptions=True)
        return self.tally

    async def _caller(self, stub: generation_pb2_grpc.GenerationServiceStub, number: int) -> None:
        rng = random.Random(self._seed + number)
        # Staggered, and of different lengths, so that streams do not end in step.
        await asyncio.sleep(rng.random() * 1.0)
        while not self._over:
            prompt = [rng.choice(self._script.words) for _ in range(PROMPT_TOKENS)]
            wanted = rng.randint(self._max_tokens // 2, self._max_tokens)
            ended = await self._call(stub, prompt, wanted)
            self.tally.ended.append(ended)
            if ended.status != "OK":
                await asyncio.sleep(0.5)

    async def _call(self, stub: generation_pb2_grpc.GenerationServiceStub, prompt: list[int], wanted: int) -> Ended:
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=prompt),
            sampling=pb.Sampling(temperature=0),
            stopping=pb.Stopping(max_tokens=wanted, ignore_end_of_text=True),
            reporting=pb.Reporting(token_ids=True),
        )
        said: list[int] = []
        before, status = 0.0, "OK"
        try:
            async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request)):
                if event.HasField("delta"):
                    now = time.monotonic()
                    if before:
                        self.tally.gaps_s.append(now - before)
                    before = now
                    self.tally.deltas.append((now, event.delta.token_count))
                    said += event.delta.token_ids
        except grpc.aio.AioRpcError as error:
            status = error.code().name
        right = self._script.answer(prompt, len(said))
        return Ended(time.monotonic(), status, len(said), said == right, len(said) == wanted)
