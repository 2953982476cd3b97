"""The engine worker as a process: its control stream, its ends and its exit codes."""

import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from coldplate.internal.v1 import engine_pb2 as pb
from coldplate.v1 import device_pb2
from support import checkpoints
from support.engine_worker import ControlStream, connected, start_worker
from support.processes import Process
from support.tokenizers import END_OF_TEXT_ID

TEXT = "the quick brown fox jumps over the lazy dog"
PROMPT = [120] * 16


@pytest.fixture(scope="module")
def model() -> Path:
    return checkpoints.script(TEXT).path


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One worker for the tests that leave it as they found it; every connection starts from nothing."""
    folder = tmp_path_factory.mktemp("worker")
    with start_worker(model, folder, "--kv-cache-tokens", "512", "--max-num-seqs", "8", "--orphan-timeout-s", "60"):
        yield folder


def text(tokens: list[int]) -> str:
    return bytes(tokens).decode()


async def test_hello_tells_what_the_worker_is(shared: Path) -> None:
    async with connected(shared) as (_, hello):
        assert hello.architecture == "GPT2LMHeadModel"
        assert (list(hello.devices), hello.simulated, hello.rng) == (["cpu"], False, "counter")
        assert (hello.credit.submits_seen, hello.credit.free_slots, hello.credit.free_kv_tokens) == (0, 8, 512)
        levers = {"duty", "max_batch", "max_prefill_tokens", "max_reasoning_tokens"}
        assert set(hello.levers) == levers | ({"cpu_share"} if hello.threads > 1 else set())
        features = {"penalties", "logit_bias", "min_tokens", "logprobs", "prompt_logprobs", "thinking", "guided"}
        assert set(hello.features) == features
        assert [phase.name for phase in hello.load_phases] == [
            "device",
            "kernels",
            "read",
            "convert",
            "pack",
            "kv_cache",
            "warm_up",
            "constraints",
        ]


async def test_streams_end_at_the_stop_token_with_one_message_per_step(shared: Path) -> None:
    async with connected(shared) as (stream, _):
        for number in (1, 2, 3):
            await stream.submit(number, PROMPT, 100, stop_token_ids=[END_OF_TEXT_ID])
        await stream.until_finished(1, 2, 3)
        assert {text(tokens) for tokens in stream.tokens.values()} == {TEXT}
        assert {item.cause for item in stream.finished.values()} == {pb.STOP_CAUSE_STOP_TOKEN}
        assert stream.finished[1].stop_token_id == END_OF_TEXT_ID
        assert stream.last.credit.submits_seen == 3
        assert (stream.last.credit.free_slots, stream.last.credit.free_kv_tokens) == (8, 512)
        assert stream.steps <= len(TEXT) + 8


async def test_cancel_and_limits_over_the_wire(shared: Path) -> None:
    async with connected(shared) as (stream, _):
        await stream.send(set_limits=pb.SetLimits(seq=7, limits=device_pb2.DeviceLimits(max_batch=1)))
        await stream.submit(1, PROMPT, 200)
        await stream.submit(2, PROMPT, 5)
        while not stream.tokens.get(1):
            await stream.step()
        assert stream.last.limits_seq == 7
        assert (stream.last.stats.running, stream.last.credit.free_slots) == (1, 0)
        await stream.send(cancel=pb.Cancel(stream=1))
        await stream.send(cancel=pb.Cancel(stream=1))
        await stream.until_finished(1, 2)
        assert stream.finished[1].cause == pb.STOP_CAUSE_CANCELLED
        assert text(stream.tokens[2]) == TEXT[:5]


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ([], {}, "no tokens"),
        ([100_000], {}, "outside the vocabulary"),
        ([1] * 300, {}, "no room in a context of 256"),
        ([1], {"sampling": pb.SamplingParams(temperature=float("inf"), top_p=1)}, "temperature is inf"),
    ],
)
async def test_unusable_submits_end_alone(
    shared: Path, prompt: list[int], options: dict[str, object], said: str
) -> None:
    async with connected(shared) as (stream, _):
        await stream.submit(1, prompt, 4, **options)
        await stream.submit(2, PROMPT, 4)
        await stream.send(set_limits=pb.SetLimits(seq=1, limits=device_pb2.DeviceLimits(duty=-1)))  # out of range
        await stream.until_finished(1, 2)
        assert stream.finished[1].error == pb.ENGINE_ERROR_UNSATISFIABLE
        assert said in stream.finished[1].error_text
        assert text(stream.tokens[2]) == TEXT[:4]


async def test_a_second_live_server_is_refused_and_a_new_one_replaces_a_dead_one(shared: Path) -> None:
    async with connected(shared) as (first, _):
        await first.submit(1, PROMPT, 200)
        await first.step()
        second = ControlStream(shared / "engine.sock")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await second.hello()
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await second.close()
        while not first.tokens.get(1):
            await first.step()
    async with connected(shared) as (third, hello):
        assert hello.credit.free_slots == 8
        await third.submit(1, PROMPT, 3)
        await third.until_finished(1)
        assert text(third.tokens[1]) == TEXT[:3], "the dead server's stream 1 is gone"
        assert third.last.stats.kv_blocks_used == 0


async def test_drain_refuses_new_streams_and_finishes_the_others(shared: Path) -> None:
    async with connected(shared) as (stream, _):
        await stream.submit(1, PROMPT, 20)
        await stream.send(drain=pb.DrainWorker())
        await stream.submit(2, PROMPT, 20)
        await stream.until_finished(1, 2)
        assert stream.finished[2].error == pb.ENGINE_ERROR_REFUSED
        assert text(stream.tokens[1]) == TEXT[:20]
        assert stream.last.credit.free_slots == 0


async def test_sigterm_finishes_what_runs_and_exits_0(model: Path, tmp_path: Path) -> None:
    with start_worker(model, tmp_path, "--test-faults", device="fault:delay=10ms@1-,cpu") as worker:
        async with connected(tmp_path) as (stream, _):
            await stream.submit(1, PROMPT, len(TEXT))
            while not stream.tokens.get(1):
                await stream.step()
            worker.signal(signal.SIGTERM)
            await stream.until_closed()
            assert text(stream.tokens[1]) == TEXT
        assert worker.wait() == 0


async def test_a_lost_device_is_told_once_and_exits_3(model: Path, tmp_path: Path) -> None:
    plan = "fault:raise=npu error, error code is 507035@5-,cpu"
    with started(start_worker(model, tmp_path, "--test-faults", device=plan)) as worker:
        async with connected(tmp_path) as (stream, _):
            await stream.send(set_limits=pb.SetLimits(seq=1, limits=device_pb2.DeviceLimits(max_prefill_tokens=0)))
            await stream.submit(1, PROMPT, 20)
            await stream.submit(2, PROMPT, 20)
            await stream.send(set_limits=pb.SetLimits(seq=2))  # both are there before the first step
            await stream.until_closed()
            assert {item.error for item in stream.finished.values()} == {pb.ENGINE_ERROR_DEVICE}
            assert len(stream.finished) == 2
        assert worker.wait() == 3


async def test_memory_comes_back_after_a_device_out_of_memory(model: Path, tmp_path: Path) -> None:
    """Five failures in two requests, 200 MB held at each: the frames of a caught error must not keep them."""
    with start_worker(model, tmp_path, "--test-faults", device="fault:alloc-oom=200MB@4-8,cpu") as worker:
        async with connected(tmp_path) as (stream, _):
            await stream.submit(1, PROMPT, 3)
            await stream.until_finished(1)
            before = worker.rss_bytes()
            await stream.submit(2, PROMPT, 2)  # prefill of 16 tokens: halved until one is left, then ended
            await stream.until_finished(2)
            assert worker.rss_bytes() - before < 20_000_000
            await stream.submit(3, PROMPT, 3)
            await stream.until_finished(3)
            assert text(stream.tokens[3]) == TEXT[:3]


async def test_a_hung_device_does_not_keep_the_process_alive(model: Path, tmp_path: Path) -> None:
    with started(start_worker(model, tmp_path, "--test-faults", device="fault:hang@1,cpu")) as worker:
        async with connected(tmp_path) as (stream, _):
            await stream.submit(1, PROMPT, 3)
            await stream.send(shutdown=pb.Shutdown(now=True))
            await stream.until_closed()
        assert worker.wait() == 0


async def test_without_a_server_it_exits_4(model: Path, tmp_path: Path) -> None:
    with started(start_worker(model, tmp_path, "--orphan-timeout-s", "4")) as worker:
        async with connected(tmp_path) as (stream, _):
            await stream.submit(1, PROMPT, 200)
            await stream.step()
        assert worker.wait() == 4


@pytest.mark.parametrize(
    ("flags", "device", "said"),
    [
        (["--max-model-len", "999"], "cpu", "999"),
        (["--kv-cache-gib", "100000"], "cpu", "would fit"),
        (["--kv-offload-gib", "60000"], "cpu", "would fit"),
        (["--kv-offload-gib", "1", "--no-enable-prefix-caching"], "cpu", "needs --enable-prefix-caching"),
        ([], "fault:oom@1,cpu", "--test-faults"),
        ([], "npu:0", "no native NPU support"),
        (["--listen", "unix:/no/such/folder/x.sock"], "cpu", "/no/such/folder does not exist"),
    ],
)
def test_what_cannot_be_used_exits_2_with_one_last_line(
    model: Path, tmp_path: Path, flags: list[str], device: str, said: str
) -> None:
    with started(start_worker(model, tmp_path, *flags, device=device)) as worker:
        assert worker.wait() == 2
        last = worker.log().splitlines()[-1]
        assert last.startswith("coldplate-engine: ")
        assert said in last


class started:  # noqa: N801 (reads as a sentence)
    """A process that is expected to end by itself: killed if it does not, whatever its exit code."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __enter__(self) -> Process:
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
