"""The seam between the engine's device-free part and what computes: devices and model runners."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from coldplate_engine.batch import StepBatch
from coldplate_engine.step_timer import StepTimer

if TYPE_CHECKING:
    from torch import Tensor

    from coldplate_engine.weights.convert import QuantizeTo

ReportProgress = Callable[[str, float], None]  # phase, share done in [0, 1]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a loaded model is. ``end_of_text_ids`` join config.json's and generation_config.json's.

    ``load_phases`` are names with seconds; ``read_bytes`` came from the files at ``read_mb_per_s``.
    """

    architecture: str
    revision: str
    parameter_count: int
    vocabulary_size: int
    max_model_len: int
    dtype: str
    quantization: str
    end_of_text_ids: frozenset[int]
    weight_bytes: int
    load_phases: tuple[tuple[str, float], ...] = ()
    read_bytes: int = 0
    read_mb_per_s: float = 0.0


class ModelRunner(Protocol):
    """A model on a device, with its paged KV cache."""

    facts: ModelFacts

    def kv_bytes_per_token(self) -> int: ...

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """Allocate the one pool of ``num_blocks`` blocks of ``block_size`` tokens. Called once."""
        ...

    def workspace_bytes(self, tokens: int, rows: int) -> int:
        """About what a step of ``tokens`` tokens and ``rows`` rows of logits takes beside weights and cache."""
        ...

    def read_blocks(self, blocks: list[int]) -> "Tensor":
        """A copy of these blocks over all layers: uint8 ``[blocks, bytes of one]``."""
        ...

    def write_blocks(self, blocks: list[int], data: "Tensor") -> None:
        """The reverse of ``read_blocks``; ``data`` may be in host memory."""
        ...

    def execute(self, batch: StepBatch, timer: StepTimer) -> "Tensor":
        """Run one step; returns float32 logits, shape [``batch.logit_rows``, vocabulary].

        Raises the device's own errors; ``Device.classify`` tells what they mean.
        """
        ...


class Device(Protocol):
    """Where a model runs."""

    @property
    def name(self) -> str:
        """Such as "cpu" or "npu:0"."""
        ...

    @property
    def chip(self) -> str: ...

    @property
    def simulated(self) -> bool: ...

    @property
    def threads(self) -> int: ...

    def load(
        self,
        model_dir: Path,
        dtype: str,
        max_model_len: int | None,
        progress: ReportProgress,
        quantize: "QuantizeTo | None" = None,
    ) -> ModelRunner:
        """Load weights, those of linears in fewer bits with ``quantize``.

        Raises ``ModelError`` naming the file, the tensor or the setting that is unusable.
        """
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes available and in all, for weights and cache."""
        ...

    def classify(self, error: BaseException) -> "Fault":
        """What an error raised by a step means."""
        ...

    def after_step(self, busy_s: float, tokens: int) -> None:
        """Told after each step; a simulated device paces the worker here."""
        ...

    def set_cpu_share(self, share: float) -> None:
        """Use this share of the compute threads from the next step on."""
        ...


@dataclass(frozen=True, slots=True)
class Fault:
    """``kind`` is "oom" (shrink and retry), "restart" (replace the process) or "bug" (fail what was running)."""

    kind: str
    text: str


class ModelError(Exception):
    """A model, a checkpoint file or a setting that cannot be used: one line for a person, naming it."""
