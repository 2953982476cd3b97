"""A runner around another one: what a device that wraps another does not change."""

from typing import TYPE_CHECKING

from coldplate_engine.batch import StepBatch
from coldplate_engine.runner import ModelRunner
from coldplate_engine.step_timer import StepTimer

if TYPE_CHECKING:
    from torch import Tensor


class WrappedRunner:
    """Passes every call on."""

    def __init__(self, inner: ModelRunner) -> None:
        self.facts = inner.facts
        self._inner = inner

    def kv_bytes_per_token(self) -> int:
        return self._inner.kv_bytes_per_token()

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        self._inner.allocate_kv(num_blocks, block_size)

    def workspace_bytes(self, tokens: int, rows: int) -> int:
        return self._inner.workspace_bytes(tokens, rows)

    def read_blocks(self, blocks: list[int]) -> "Tensor":
        return self._inner.read_blocks(blocks)

    def write_blocks(self, blocks: list[int], data: "Tensor") -> None:
        self._inner.write_blocks(blocks, data)

    def execute(self, batch: StepBatch, timer: StepTimer) -> "Tensor":
        return self._inner.execute(batch, timer)
