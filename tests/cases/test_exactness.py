"""Greedy float32 through the whole service equals transformers' ``generate``, token for token, on a real model."""

import random
import threading
import time
from pathlib import Path

import pytest

from support import reference
from support.client import StreamCall, request, unary
from support.processes import Stack
from support.reference import PROMPTS


def expected(demo_model: Path, prompts: tuple[str, ...], tokens: int) -> dict[str, list[int]]:
    return dict(zip(prompts, reference.generate(demo_model, prompts, tokens), strict=True))


def check_alone_and_together(service: Stack, answers: dict[str, list[int]], join_within_s: float) -> None:
    """Every prompt by itself, then all of them joining at random moments."""
    tokens = len(next(iter(answers.values())))
    options = {"max_tokens": tokens, "ignore_end_of_text": True, "token_ids": True}
    for prompt, answer in answers.items():
        alone = unary(service, request(prompt, **options))
        assert alone.ok, alone.message
        assert alone.token_ids == answer, f"alone, {prompt[:40]!r}"

    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    together: dict[str, list[int]] = {}

    def join(prompt: str, after_s: float) -> None:
        time.sleep(after_s)  # the moment of joining, not a wait for anything
        together[prompt] = StreamCall(service, request(prompt, **options)).read_all().token_ids

    threads = [threading.Thread(target=join, args=(prompt, rng.uniform(0, join_within_s))) for prompt in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wrong = {prompt[:40]: reference.common_prefix(together[prompt], answers[prompt]) for prompt in answers}
    assert together == answers, f"tokens equal before the first that differs: {wrong}"


@pytest.mark.timeout(300)
def test_five_prompts_alone_and_together(demo_service: Stack, demo_model: Path) -> None:
    check_alone_and_together(demo_service, expected(demo_model, PROMPTS[:5], 24), join_within_s=0.5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_prompts_alone_and_together(demo_service: Stack, demo_model: Path) -> None:
    check_alone_and_together(demo_service, expected(demo_model, PROMPTS, 64), join_within_s=4)
