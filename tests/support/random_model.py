"""A model whose logits are drawn from all tokens before them, and constraints compiled on the spot."""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import torch

from coldplate_engine.guided.compiler import ConstraintCompiler, Done
from coldplate_engine.messages import Constraint
from support.fake_runner import FakeRunner
from support.tokenizers import BYTES_VOCABULARY, END_OF_TEXT_ID, TokenizerSpec, build

BYTES_ENDS = frozenset({END_OF_TEXT_ID})


def random_logits(tokens: Sequence[int], vocabulary: int = BYTES_VOCABULARY, memory: int = 1000) -> torch.Tensor:
    """``memory``: only so many of the last tokens count, so that a model repeats itself."""
    seed = hash(tuple(tokens[-memory:])) & (2**63 - 1)
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def random_runner(vocabulary: int = BYTES_VOCABULARY, memory: int = 1000) -> FakeRunner:
    return FakeRunner(logits_of=lambda tokens: random_logits(tokens, vocabulary, memory), vocabulary=vocabulary)


class SameThread(Executor):
    """Runs what is submitted at once."""

    def submit(self, function: Any, /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **options))
        except Exception as error:
            future.set_exception(error)
        return future


class CompileAtOnce:
    """Compiles in the caller's thread, so that a scripted loop is the same in each run."""

    def __init__(self, ends: frozenset[int] = BYTES_ENDS) -> None:
        self.compiler = ConstraintCompiler(build(TokenizerSpec()).to_str(), ends, threads=0, masks=SameThread())

    def build(self, constraint: Constraint, answer_ids: Sequence[int], done: Done) -> None:
        done(self.compiler.compile(constraint, answer_ids))


def text_of(tokens: Sequence[int]) -> str:
    """Of the BYTES tokenizer."""
    return bytes(tokens).decode()
