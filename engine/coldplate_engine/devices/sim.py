"""A simulated NPU: the CPU computes, a board process sets the pace and may take memory or the chip away.

What computes may itself be modelled: see ``modelled``.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from coldplate.device_id import DeviceId
from coldplate_engine.batch import StepBatch
from coldplate_engine.devices.wrapped import WrappedRunner
from coldplate_engine.runner import Device, Fault, ModelError, ModelRunner, ReportProgress
from coldplate_engine.step_timer import StepTimer

if TYPE_CHECKING:
    from torch import Tensor

    from coldplate_engine.weights.convert import QuantizeTo
    from coldplate_governor.board.client import BoardClient

log = structlog.get_logger()

_RETRY_S = 2.0
_WITHOUT_BFLOAT16 = ("310", "910A", "910P")
_UNKNOWN_CHIP = "simulated"
_LOGIT_BYTES = 4


class SimulatedOutOfMemory(RuntimeError):
    """The board's memory limit was passed, in the words of an NPU."""


class SimulatedDeviceLost(RuntimeError):
    """The board says that the chip is gone."""


def open_sim(spec: str, inner: Device) -> "SimDevice":
    """``spec`` is ADDRESS#npu:N. Raises ModelError when it is not."""
    client, index = parse_chip(spec)
    return SimDevice(inner, client, index)


def parse_chip(spec: str) -> "tuple[BoardClient, int]":
    """A client of the board, and the number of the chip, of ADDRESS#npu:N. Raises ModelError when it is not that."""
    from coldplate_governor.board.client import BoardClient

    address, _, name = spec.rpartition("#")
    try:
        device = DeviceId.parse(name)
        client = BoardClient(address)
    except ValueError as error:
        raise ModelError(f"--device 'sim:{spec}': {error}; expected sim:ADDRESS#npu:N") from None
    if device.index is None:
        raise ModelError(f"--device 'sim:{spec}': a board simulates NPUs, not {name!r}; expected sim:ADDRESS#npu:N")
    return client, device.index


class SimDevice:
    """Computes on ``inner`` at the pace of chip ``index`` of the board. Without its board it computes unpaced."""

    simulated = True

    def __init__(
        self, inner: Device, board: "BoardClient", index: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.name = f"npu:{index}"
        self.threads = inner.threads
        self._inner = inner
        self._board = board
        self._index = index
        self._sleep = sleep
        self._silent_until = 0.0
        self._told = False
        self._fault: str | None = None
        self._memory_limit: int | None = None
        self.held_bytes = 0
        self.chip = self._ask_chip()
        if inner.simulated:  # it says more of the chip than the board does
            self.chip = inner.chip

    def load(
        self,
        model_dir: Path,
        dtype: str,
        max_model_len: int | None,
        progress: ReportProgress,
        quantize: "QuantizeTo | None" = None,
    ) -> ModelRunner:
        if dtype == "bfloat16" and self.chip.startswith(_WITHOUT_BFLOAT16):
            raise ModelError(f"--dtype bfloat16: {self.chip} has no bfloat16; use auto or float16")
        return SimRunner(self, self._inner.load(model_dir, dtype, max_model_len, progress, quantize))

    def memory(self) -> tuple[int, int]:
        available, total = self._inner.memory()
        limit = self._memory_limit
        return (available, total) if limit is None else (min(available, limit), min(total, limit))

    def classify(self, error: BaseException) -> Fault:
        if isinstance(error, SimulatedDeviceLost):
            return Fault("restart", str(error))
        return self._inner.classify(error)

    def set_cpu_share(self, share: float) -> None:
        self._inner.set_cpu_share(share)

    def after_step(self, busy_s: float, tokens: int) -> None:
        """Post the step, then stretch it by the board's slow-down."""
        from coldplate_governor.board.client import BoardRefused, BoardUnreachable

        now = time.monotonic()
        if now < self._silent_until:
            return
        try:
            reply = self._board.post_step(self._index, busy_s, tokens, self.held_bytes)
        except BoardUnreachable as error:
            self._silent_until = now + _RETRY_S
            self._tell_once(str(error))
            return
        except BoardRefused as error:
            self._fault = str(error)
            return
        self._told = False
        self._fault, self._memory_limit = reply.fault, reply.memory_limit_bytes
        if reply.slowdown > 1:
            self._sleep(busy_s * (reply.slowdown - 1))

    def check_fault(self) -> None:
        """Raise what the board's last answer asks for."""
        fault, self._fault = self._fault, None
        if fault == "oom":
            raise SimulatedOutOfMemory("NPU out of memory, as the board was told")
        if fault is not None:
            raise SimulatedDeviceLost(f"{self.name} lost: {fault}")

    def check_memory(self, held_bytes: int, step_bytes: int) -> None:
        limit = self._memory_limit
        if limit is not None and held_bytes + step_bytes > limit:
            raise SimulatedOutOfMemory(
                f"NPU out of memory. Tried to allocate {step_bytes / 2**20:.2f} MiB "
                f"({limit / 2**20:.2f} MiB total capacity; {held_bytes / 2**20:.2f} MiB already allocated)"
            )

    def _ask_chip(self) -> str:
        from coldplate_governor.board.client import BoardChipLost, BoardRefused, BoardUnreachable

        try:
            facts = self._board.read(self._index)
            # A step of no tokens tells the memory limit before anything is loaded.
            self._memory_limit = self._board.post_step(self._index, 0.0, 0).memory_limit_bytes
            return str(facts.get("chip", _UNKNOWN_CHIP))
        except BoardChipLost as error:
            raise ModelError(f"{self.name}: {error}") from None
        except BoardRefused as error:
            raise ModelError(f"{self.name}: {error}") from None
        except BoardUnreachable as error:
            self._tell_once(str(error))
            return _UNKNOWN_CHIP

    def _tell_once(self, reason: str) -> None:
        if not self._told:
            log.warning("no board: computing unpaced", device=self.name, reason=reason)
            self._told = True


class SimRunner(WrappedRunner):
    """``step_bytes`` of a call is taken as one row of logits per token: a stand-in for an NPU's workspace."""

    def __init__(self, device: SimDevice, inner: ModelRunner) -> None:
        super().__init__(inner)
        self._device = device
        device.held_bytes = inner.facts.weight_bytes

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        super().allocate_kv(num_blocks, block_size)
        self._device.held_bytes += num_blocks * block_size * self.kv_bytes_per_token()
        self._device.after_step(0.0, 0)  # the board is to know before the first step

    def execute(self, batch: StepBatch, timer: StepTimer) -> "Tensor":
        self._device.check_fault()
        self._device.check_memory(
            self._device.held_bytes, batch.token_count * self.facts.vocabulary_size * _LOGIT_BYTES
        )
        return super().execute(batch, timer)
