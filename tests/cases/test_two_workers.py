"""Many streams over several workers: all complete, all right, and every worker takes part."""

import random

from support import checkpoints
from support.client import StreamCall, request, status, unary
from support.processes import Stack, until

STREAMS, TOKENS = 32, 40


def test_32_streams_over_two_workers_are_complete_and_right() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    prompts = ["".join(rng.choices("abcdefgh ", k=rng.randint(1, 60))) for _ in range(STREAMS)]
    with Stack(
        {"llama": checkpoints.random_llama(seed=11)},
        workers=["cpu", "cpu"],
        engine_args=["dtype=float32", "kv-cache-tokens=4096", "max-num-seqs=16"],
    ) as stack:
        until("both workers", lambda: len([d for d in status(stack).devices if d.kv_tokens_total]) == 2, 60)
        alone = [unary(stack, request(prompt, max_tokens=TOKENS, token_ids=True)).token_ids for prompt in prompts]
        calls = [
            StreamCall(stack, request(prompt, max_tokens=TOKENS, token_ids=True)).start_reading() for prompt in prompts
        ]
        busiest = dict.fromkeys((device.worker for device in status(stack).devices), 0)
        while any(call.outcome.end_time == 0 for call in calls):
            for device in status(stack).devices:
                busiest[device.worker] = max(busiest[device.worker], device.running)
        for call, ids in zip(calls, alone, strict=True):
            outcome = call.result()
            assert outcome.ok, outcome.message
            assert outcome.token_ids == ids
        assert len(busiest) == 2
        assert all(most > 0 for most in busiest.values()), busiest
