"""Constraints, penalties, log-probabilities and guesses through a worker process, on a random Llama."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldplate.internal.v1 import engine_pb2 as pb
from coldplate.v1 import device_pb2, generation_pb2
from support import checkpoints
from support.engine_worker import connected, start_worker
from support.tokenizers import END_OF_TEXT_ID

PROMPT = [97, 98, 97, 98, 97]
HOT = pb.SamplingParams(temperature=0.9, top_p=1, seed=4, repetition_penalty=1, logit_bias={120: 2.0})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("worker")
    flags = ["--kv-cache-tokens", "1024", "--max-num-seqs", "4", "--orphan-timeout-s", "60"]
    with start_worker(checkpoints.random_llama(seed=5).path, folder, *flags, "--num-speculative-tokens", "3"):
        yield folder


async def test_a_constrained_stream_ends_by_its_grammar_beside_a_refused_one(shared: Path) -> None:
    async with connected(shared) as (stream, hello):
        assert hello.engine_settings["num_speculative_tokens"] == "3"
        assert hello.engine_settings["prompt_lookup_max"] == "4"
        yes = pb.Constraint(regex="(ab|cd){4,9}x")
        await stream.submit(1, PROMPT, 60, constraint=yes, sampling=HOT, stop_token_ids=[END_OF_TEXT_ID])
        await stream.submit(2, PROMPT, 60, constraint=pb.Constraint(json_schema='{"type": "nothing"}'))
        await stream.submit(3, PROMPT, 20)
        await stream.until_finished(1, 2, 3)
        assert re.fullmatch("(ab|cd){4,9}x", bytes(stream.tokens[1]).decode())
        assert (stream.finished[1].cause, stream.finished[1].stop_token_id) == (
            pb.STOP_CAUSE_STOP_TOKEN,
            END_OF_TEXT_ID,
        )
        assert stream.finished[2].error == pb.ENGINE_ERROR_BAD_CONSTRAINT
        assert "nothing" in stream.finished[2].error_text
        assert len(stream.tokens[3]) == 20


async def test_logprobs_of_prompt_and_answer(shared: Path) -> None:
    async with connected(shared) as (stream, _):
        await stream.submit(1, PROMPT, 6, logprobs=2, prompt_logprobs=0, sampling=HOT)
        new: list[generation_pb2.TokenLogprob] = []
        prompt: list[generation_pb2.TokenLogprob] = []
        while 1 not in stream.finished:
            step = await stream.step()
            assert [item.index for item in step.logprobs] == list(range(len(step.token_ids)))
            new += [item.logprob for item in step.logprobs]
            prompt += [item for part in step.prompt_logprobs for item in part.logprobs]
        assert [item.token_id for item in prompt] == PROMPT[1:]
        assert [item.token_id for item in new] == stream.tokens[1]
        assert all(len(item.alternatives) == 2 and item.logprob <= 0 for item in new)


async def test_a_cap_on_thinking_closes_it(shared: Path) -> None:
    async with connected(shared) as (stream, _):
        await stream.send(set_limits=pb.SetLimits(seq=1, limits=device_pb2.DeviceLimits(max_reasoning_tokens=3)))
        thinking = pb.Thinking(start_token_id=1, end_token_id=2, open=True, close_token_ids=[7, 2])
        await stream.submit(1, PROMPT, 10, thinking=thinking)
        await stream.until_finished(1)
        assert stream.tokens[1][3:5] == [7, 2]
        assert len(stream.tokens[1]) == 10
