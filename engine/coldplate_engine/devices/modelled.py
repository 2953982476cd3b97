"""A simulated NPU that computes nothing: scripted tokens, and steps that take as long as the chip would.

Scheduler, cache, sampler, limits and faults around it are the real ones, so what is to be seen of pacing, memory and
failures is what a real device would show; its words are not a model's. Eight of them run on two cores.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from coldplate_engine.batch import StepBatch
from coldplate_engine.devices.errors import classify_error
from coldplate_engine.devices.script import START, Script, script_of
from coldplate_engine.devices.sim import SimDevice, parse_chip
from coldplate_engine.devices.step_model import ChipSpeed, ModelSize, known_size, size_of
from coldplate_engine.runner import Fault, ModelError, ModelFacts, ReportProgress
from coldplate_engine.step_timer import StepTimer
from coldplate_engine.weights.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

    from coldplate_engine.weights.convert import QuantizeTo

_PEAK = 100.0  # of the scripted token's logit over all others: no temperature in use reaches them
_DTYPES = {"auto": "float16", "float16": "float16", "bfloat16": "bfloat16", "float32": "float32"}
_MOST_OVERRUN_S = 0.005
_STATE_BYTES = 8


def open_modelled(chip: str, modelled_as: str) -> SimDevice:
    """``chip`` is ADDRESS#npu:N; ``modelled_as`` names a model whose sizes count, or is empty for the worker's own.

    Raises ModelError, also where no board answers: what it models is told by the board.
    """
    from coldplate_governor.board.client import BoardChipLost, BoardRefused, BoardUnreachable

    client, index = parse_chip(chip)
    size = known_size(modelled_as) if modelled_as else None
    try:
        facts = client.read(index)
    except BoardUnreachable as error:
        raise ModelError(f"npu:{index}: a modelled chip needs its board: {error}") from None
    except (BoardChipLost, BoardRefused) as error:
        raise ModelError(f"npu:{index}: {error}") from None
    return SimDevice(ModelledDevice(facts, size), client, index)


class ModelledDevice:
    """What stands in for the hardware under a ``SimDevice``. ``facts`` are the board's of the chip."""

    name, simulated, threads = "npu", True, 1

    def __init__(
        self,
        facts: dict[str, Any],
        size: tuple[ModelSize, str | None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.chip = str(facts["chip"]).replace("(simulated)", "(simulated, scripted tokens)")
        self._speed = ChipSpeed(
            1e9 * float(facts["bandwidth_gb_s"]), 1e12 * float(facts["fp16_tflops"]), 1e12 * float(facts["int8_tops"])
        )
        self._total = int(facts["memory_total_bytes"])
        self._available = self._total - int(facts["memory_idle_bytes"])
        self._size = size
        self._sleep = sleep

    def load(
        self,
        model_dir: Path,
        dtype: str,
        max_model_len: int | None,
        progress: ReportProgress,
        quantize: "QuantizeTo | None" = None,
    ) -> "ModelledRunner":
        """Reads ``config.json`` and the tokenizer, and no weights: there need not be any."""
        config = ModelConfig(model_dir)
        plain, bits = self._size or (size_of(config), None)
        bits = quantize or bits
        size = plain.stored_as(_DTYPES[dtype], bits)
        positions = config.count("n_positions" if "n_positions" in config.fields else "max_position_embeddings")
        if max_model_len is not None and not 1 <= max_model_len <= positions:
            raise ModelError(
                f"max_model_len {max_model_len} is out of range: {model_dir} has positions for {positions}"
            )
        vocabulary = config.count("vocab_size")
        facts = ModelFacts(
            architecture=f"{config.architecture} (modelled: scripted tokens)",
            revision="modelled",
            parameter_count=size.parameters,
            vocabulary_size=vocabulary,
            max_model_len=max_model_len or positions,
            dtype=_DTYPES[dtype],
            quantization=bits or "",
            end_of_text_ids=config.end_of_text_ids,
            weight_bytes=size.weight_bytes,
        )
        progress("weights", 1.0)
        script = script_of(model_dir, vocabulary, config.end_of_text_ids)
        return ModelledRunner(facts, size, self._speed, script, self._sleep)

    def memory(self) -> tuple[int, int]:
        return self._available, self._total

    def classify(self, error: BaseException) -> Fault:
        return classify_error(error)

    def after_step(self, busy_s: float, tokens: int) -> None:
        """The board paces it."""

    def set_cpu_share(self, share: float) -> None:
        """It has none."""


class ModelledRunner:
    """Keeps the script's state behind each position where a model keeps keys and values."""

    def __init__(
        self,
        facts: ModelFacts,
        size: ModelSize,
        speed: ChipSpeed,
        script: Script,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.facts = facts
        self.script = script
        self._size = size
        self._speed = speed
        self._sleep = sleep
        self._states: NDArray[np.uint64] = np.zeros((0, 1), dtype=np.uint64)
        self._logits = torch.zeros(0, facts.vocabulary_size)
        self._set: list[tuple[int, int]] = []
        self._overrun_s = 0.0

    def kv_bytes_per_token(self) -> int:
        return max(_STATE_BYTES, self._size.kv_bytes)

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        self._states = np.zeros((num_blocks, block_size), dtype=np.uint64)

    def workspace_bytes(self, tokens: int, rows: int) -> int:
        return 4 * rows * self.facts.vocabulary_size

    def read_blocks(self, blocks: list[int]) -> "Tensor":
        """As wide as the cache it stands for; the states come first."""
        states = torch.from_numpy(self._states[blocks].view(np.uint8))
        out = torch.zeros(len(blocks), self._states.shape[1] * self.kv_bytes_per_token(), dtype=torch.uint8)
        out[:, : states.shape[1]] = states
        return out

    def write_blocks(self, blocks: list[int], data: "Tensor") -> None:
        width = self._states.shape[1] * _STATE_BYTES
        self._states[blocks] = data[:, :width].contiguous().numpy().view(np.uint64)

    def execute(self, batch: StepBatch, timer: StepTimer) -> "Tensor":
        began = time.perf_counter()
        with timer.part("device"):
            ends = began + self._size.step_s(batch, self._speed) - self._overrun_s
            logits = self._show(self._say(batch))
            left = ends - time.perf_counter()
            if left > 0:
                self._sleep(left)
            # A sleep that ran over is this machine's doing, not the chip's: the next one is that much shorter.
            self._overrun_s = min(_MOST_OVERRUN_S, max(0.0, time.perf_counter() - ends)) if left > 0 else 0.0
        return logits

    def _say(self, batch: StepBatch) -> list[int]:
        """The token behind each row of the batch."""
        said: list[int] = []
        states, size, absorb = self._states, self._states.shape[1], self.script.absorb
        for piece in batch.slices:
            table, position = piece.block_table, piece.start
            before = position - 1
            state = int(states[table[before // size], before % size]) if position else START
            wanted_from = len(piece.token_ids) - piece.logit_tokens
            for offset, token in enumerate(piece.token_ids):
                state = absorb(state, token)
                at = position + offset
                states[table[at // size], at % size] = state
                if offset >= wanted_from:
                    said.append(self.script.next(state))
        return said

    def _show(self, tokens: list[int]) -> "Tensor":
        """Logits that leave nothing but ``tokens``, one a row; the same memory each time."""
        if len(tokens) > len(self._logits):
            self._logits = torch.zeros(len(tokens), self.facts.vocabulary_size)
            self._set = []
        rows = self._logits.numpy()
        for row, token in self._set:
            rows[row, token] = 0.0
        self._set = list(enumerate(tokens))
        for row, token in self._set:
            rows[row, token] = _PEAK
        return self._logits[: len(tokens)]
