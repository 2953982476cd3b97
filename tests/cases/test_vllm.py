"""A vLLM worker behind the whole service: exact, told apart when it dies, and one clear line where it cannot be had."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from coldplate.v1 import model_pb2, model_pb2_grpc
from coldplate_server.text.tokenizer import Tokenizer
from support import case_models, reference
from support.case_models import alphabet_answer
from support.client import StreamCall, request, status, unary
from support.processes import Stack, clean_environment, run, until
from support.vllm import ROOT, START_S, stack_options, vllm_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * START_S)]

PROMPT = "x" * 10
TOKENS = 32


@pytest.fixture(scope="module")
def demo(demo_model: Path) -> Iterator[Stack]:
    flags = ["dtype=float32", "kv-cache-tokens=8192", "max-num-seqs=8"]
    with Stack({"demo": demo_model}, **stack_options("vllm", engine_args=flags)) as stack:
        yield stack


def direct(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What ``AsyncLLM`` says without us, one prompt after the other."""
    flags = [f"--model={model}", "--dtype=float32", "--enforce-eager", "--max-num-seqs=8"]
    flags += ["--kv-cache-memory-bytes=500000000", "--block-size=128"]
    program = ROOT / "benchmarks" / "direct_vllm.py"
    rounds = [json.dumps({"prompts": [prompt], "max_tokens": TOKENS, "ids": True}) for prompt in prompts]
    done = subprocess.run(
        [str(vllm_python()), str(program), *flags],
        input="\n".join(rounds) + "\n",
        capture_output=True,
        text=True,
        timeout=2 * START_S,
        check=True,
        env=clean_environment(
            VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_HOST_IP="127.0.0.1"
        ),
    )
    return [json.loads(line)["token_ids"][0] for line in done.stdout.splitlines()[1:]]


def test_greedy_text_is_that_of_asyncllm_alone(demo: Stack, demo_model: Path) -> None:
    prompts = list(reference.PROMPTS[:6])
    answers = [
        unary(demo, request(prompt, max_tokens=TOKENS, ignore_end_of_text=True, token_ids=True), timeout_s=120)
        for prompt in prompts
    ]
    assert all(answer.ok for answer in answers)
    tokenizer = Tokenizer.load(demo_model)
    ids = [list(tokenizer.encode(prompt)) for prompt in prompts]
    assert [answer.token_ids for answer in answers] == direct(demo_model, ids)


def test_the_model_service_shows_vllms_settings(demo: Stack) -> None:
    stub = model_pb2_grpc.ModelServiceStub(demo.channel)
    (replica,) = stub.GetModel(model_pb2.GetModelRequest(model="demo"), timeout=5).model.replicas
    assert replica.engine_settings["enforce-eager"] == "true"
    assert "guided" in replica.features


def test_a_killed_engine_core_ends_streams_with_a_status_and_the_worker_is_started_again(demo: Stack) -> None:
    call = StreamCall(demo, request(PROMPT, max_tokens=400, ignore_end_of_text=True)).read_deltas(2).start_reading()
    before = demo.descendants()
    (core,) = [child for child in before if "EngineCore" in "".join(child.cmdline())]
    old = [core, *core.parents()[:1], *core.children(recursive=True)]
    core.kill()
    killed_at = time.monotonic()
    outcome = call.result(10)
    assert outcome.code.name == "ABORTED"
    assert outcome.reason == "STREAM_CUT"
    assert outcome.end_time - killed_at < 5
    until("a new worker", lambda: status(demo).devices[0].restarts == 1, 30)
    until("the worker again", lambda: demo.health() == "SERVING", demo.start_timeout_s)
    assert not psutil.wait_procs(old, timeout=5)[1]
    assert unary(demo, request(PROMPT, max_tokens=4), timeout_s=120).ok


@pytest.mark.parametrize(
    ("python", "argument", "said"),
    [
        (sys.executable, "--enforce-eager", "vLLM is not installed"),
        (None, "--enable-npu-graph", "unrecognized arguments: --enable-npu-graph"),
        (None, '--hf-overrides={"architectures": ["NoSuchForCausalLM"]}', "NoSuchForCausalLM"),
        (None, "--kv-cache-memory-bytes=4096", "vLLM did not start: "),
    ],
)
def test_what_cannot_start_says_why_in_one_line_and_the_rest_goes_on(
    python: str | None, argument: str, said: str
) -> None:
    """In the server's log and in ``coldplate status``."""
    python = python or str(vllm_python())
    with Stack(
        {"alphabet": case_models.alphabet()},
        workers=["cpu", "vllm:cpu"],
        server_args=[f"vllm-python={python}", f"vllm-arg={argument}"],
    ) as stack:

        def reason() -> str | None:
            return next((device.detail for device in status(stack).devices if said in device.detail), None)

        line = until("the reason", reason, START_S, 0.5)
        assert "\n" not in line
        assert line in stack.log()
        shown = run("coldplate", "status", f"--server={stack.address}")
        assert said.split()[0] in shown.stdout
        assert unary(stack, request(PROMPT, max_tokens=8)).text == alphabet_answer(len(PROMPT), 8)
