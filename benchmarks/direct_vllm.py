"""vLLM alone, in a process of its own: ``AsyncLLM`` with its own detokenising, and no service.

Run by vLLM's interpreter, as a child of vllm_overhead.py. Takes vLLM's flags, reads one JSON line per round,
``{"prompts": [[ids]…], "max_tokens": N}``, from standard input, and answers each with ``{"seconds": S, "tokens": N}``,
or with the token ids, ``{"token_ids": [[ids]…]}``, where ``"ids": true`` asks for them.
"""

import asyncio
import itertools
import json
import os
import sys
import time
from typing import Any, TextIO

_numbers = itertools.count()


async def _one(llm: Any, prompt: list[int], max_tokens: int) -> list[int]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    tokens: list[int] = []
    async for output in llm.generate({"prompt_token_ids": prompt}, params, f"r{next(_numbers)}"):
        tokens += output.outputs[0].token_ids
    return tokens


async def _serve(flags: list[str], answers: TextIO) -> None:
    from vllm import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    parsed = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(flags)
    parsed.disable_log_stats = True
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(parsed))
    try:
        print(json.dumps({"ready": True}), file=answers, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            wanted = json.loads(line)
            start = time.perf_counter()
            made = await asyncio.gather(*(_one(llm, prompt, wanted["max_tokens"]) for prompt in wanted["prompts"]))
            seconds = time.perf_counter() - start
            answer = {"token_ids": made} if wanted.get("ids") else {"seconds": seconds, "tokens": sum(map(len, made))}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        llm.shutdown()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM's processes write to standard output, too
    asyncio.run(_serve(sys.argv[1:], answers))


if __name__ == "__main__":
    main()
