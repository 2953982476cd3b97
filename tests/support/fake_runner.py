"""A model of a few lines with a checked cache, and a device that takes as long as a test wants."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from coldplate.clock import ManualClock
from coldplate_engine.batch import StepBatch
from coldplate_engine.devices.errors import classify_error
from coldplate_engine.runner import Fault, ModelFacts, ReportProgress
from coldplate_engine.step_timer import StepTimer
from coldplate_engine.weights.convert import QuantizeTo

VOCABULARY = 64
_UNWRITTEN = 255


def next_token(tokens: Sequence[int]) -> int:
    """The fake's greedy answer to a sequence; it depends on every token of it."""
    return (sum(tokens) + len(tokens)) % VOCABULARY


def greedy_answer(prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class FakeRunner:
    """Answers ``next_token`` of what it finds in its cache, so a wrong block table, position or retry changes the text.

    ``poison``: a sequence holding this token gets NaN logits. ``before`` runs ahead of each call, with its
    number from 1. ``logits_of``: the row behind a sequence, instead.
    """

    def __init__(
        self,
        *,
        poison: int | None = None,
        before: Callable[[int, StepBatch], None] | None = None,
        logits_of: Callable[[list[int]], torch.Tensor] | None = None,
        vocabulary: int = VOCABULARY,
    ) -> None:
        self.facts = ModelFacts("Fake", "1", 0, vocabulary, 256, "float32", "", frozenset(), 1000)
        self.calls: list[StepBatch] = []
        self._cache: list[list[int | None]] = []
        self._block_size = 1
        self._poison = poison
        self._logits_of = logits_of
        self._before = before

    def kv_bytes_per_token(self) -> int:
        return 8

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        self._cache = [[None] * block_size for _ in range(num_blocks)]
        self._block_size = block_size

    def workspace_bytes(self, tokens: int, rows: int) -> int:
        return 0

    def read_blocks(self, blocks: list[int]) -> torch.Tensor:
        rows = [[_UNWRITTEN if token is None else token for token in self._cache[block]] for block in blocks]
        return torch.tensor(rows, dtype=torch.uint8)

    def write_blocks(self, blocks: list[int], data: torch.Tensor) -> None:
        for block, row in zip(blocks, data.tolist(), strict=True):
            self._cache[block] = [None if token == _UNWRITTEN else token for token in row]

    def execute(self, batch: StepBatch, timer: StepTimer) -> torch.Tensor:
        self.calls.append(batch)
        if self._before is not None:
            self._before(len(self.calls), batch)
        logits = torch.zeros(batch.logit_rows, self.facts.vocabulary_size)
        row = 0
        for piece in batch.slices:
            for offset, token in enumerate(piece.token_ids):
                block, slot = divmod(piece.start + offset, self._block_size)
                self._cache[piece.block_table[block]][slot] = token
            end = piece.start + len(piece.token_ids)
            for length in range(end - piece.logit_tokens + 1, end + 1):
                tokens = self._read(piece.block_table, length)
                if self._logits_of is None:
                    logits[row, next_token(tokens)] = 10.0
                else:
                    logits[row] = self._logits_of(tokens)
                if self._poison in tokens:
                    logits[row, 0] = torch.nan
                row += 1
        return logits

    def _read(self, table: list[int], length: int) -> list[int]:
        found = [self._cache[table[at // self._block_size]][at % self._block_size] for at in range(length)]
        tokens = [token for token in found if token is not None]
        assert len(tokens) == length, "a position was never written"
        return tokens


class FakeDevice:
    """``clock`` moves by ``step_s`` with each step, as if it had computed so long."""

    name, chip, simulated, threads = "cpu", "fake", False, 1

    def __init__(self, runner: FakeRunner | None = None, clock: ManualClock | None = None, step_s: float = 0.0) -> None:
        self.runner = runner or FakeRunner()
        self.cpu_shares: list[float] = []
        self.steps: list[int] = []
        self._clock = clock
        self._step_s = step_s

    def load(
        self,
        model_dir: Path,
        dtype: str,
        max_model_len: int | None,
        progress: ReportProgress,
        quantize: QuantizeTo | None = None,
    ) -> FakeRunner:
        return self.runner

    def memory(self) -> tuple[int, int]:
        return 1 << 30, 1 << 31

    def classify(self, error: BaseException) -> Fault:
        return classify_error(error)

    def after_step(self, busy_s: float, tokens: int) -> None:
        self.steps.append(tokens)
        if self._clock is not None:
            self._clock.advance(self._step_s)

    def set_cpu_share(self, share: float) -> None:
        self.cpu_shares.append(share)
