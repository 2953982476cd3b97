"""A device that fails on purpose, for tests: ``fault:PLAN,DEVICE``, allowed with ``--test-faults`` only.

A plan is one or more actions joined by ``+``. Each is ``KIND@STEPS`` or ``KIND=VALUE@STEPS``. Steps are calls of the
model, counted from 1 after the warm-up; a repeated call counts again. ``STEPS`` is ``5`` (that one), ``5-`` (from there
on) or ``5-7``.

====================  =====================================================================
``oom``               raise torch.OutOfMemoryError
``alloc-oom=200MB``   allocate and touch that much, then raise torch.OutOfMemoryError
``raise=TEXT``        raise RuntimeError(TEXT)
``cancelled``         raise asyncio.CancelledError
``delay=20ms``        sleep first (``ms`` or ``s``)
``hang``              never come back
``exit`` ``exit=9``   end the process with that code, 1 by default
====================  =====================================================================

Example: ``fault:delay=20ms@1-+raise=error code is 507035@5-,cpu``.
"""

import asyncio
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from coldplate_engine.batch import StepBatch
from coldplate_engine.devices.wrapped import WrappedRunner
from coldplate_engine.runner import Device, Fault, ModelError, ModelRunner, ReportProgress
from coldplate_engine.step_timer import StepTimer

if TYPE_CHECKING:
    from torch import Tensor

    from coldplate_engine.weights.convert import QuantizeTo

_KINDS = "alloc-oom|oom|raise|cancelled|delay|hang|exit"
_ACTION = re.compile(rf"({_KINDS})(?:=(.*))?@(\d+)(-(\d+)?)?", re.DOTALL)
_NEXT_ACTION = re.compile(rf"\+(?=(?:{_KINDS})[=@])")
_VALUES = {
    "alloc-oom": re.compile(r"(\d+)MB"),
    "raise": re.compile(r"(.+)", re.DOTALL),
    "delay": re.compile(r"(\d+(?:\.\d+)?)(ms|s)"),
    "exit": re.compile(r"(\d{1,3})"),
}
_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class FaultAction:
    """``last`` None: from ``first`` on for ever."""

    kind: str
    value: str
    first: int
    last: int | None

    def applies(self, step: int) -> bool:
        return self.first <= step and (self.last is None or step <= self.last)

    def perform(self) -> None:
        match self.kind:
            case "oom":
                raise torch.OutOfMemoryError("out of memory, as planned")
            case "alloc-oom":
                held = torch.ones(int(self.value.removesuffix("MB")) * _MB, dtype=torch.uint8)
                raise torch.OutOfMemoryError(f"out of memory after {held.numel() // _MB} MB, as planned")
            case "raise":
                raise RuntimeError(self.value)
            case "cancelled":
                raise asyncio.CancelledError
            case "delay":
                time.sleep(_seconds(self.value))
            case "hang":
                threading.Event().wait()
            case "exit":
                os._exit(int(self.value or 1))


def parse_plan(plan: str) -> list[FaultAction]:
    """Raises ModelError with the action that is not understood."""
    return [_parse_action(text) for text in _NEXT_ACTION.split(plan)]


def _parse_action(text: str) -> FaultAction:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ModelError(
            f"fault plan: {text!r} is not KIND@STEPS or KIND=VALUE@STEPS (kinds: {_KINDS.replace('|', ', ')})"
        )
    kind, value, first, to, last = match.groups()
    form = _VALUES.get(kind)
    needs_value = form is not None and kind != "exit"
    if (value is None and needs_value) or (value is not None and (form is None or not form.fullmatch(value))):
        raise ModelError(f"fault plan: {text!r}: {value!r} is no value for {kind}")
    start = int(first)
    end = start if to is None else (int(last) if last else None)
    if start < 1 or (end is not None and end < start):
        raise ModelError(f"fault plan: {text!r}: steps count from 1, and a range goes upwards")
    return FaultAction(kind, value or "", start, end)


def _seconds(value: str) -> float:
    return float(value[:-2]) / 1000 if value.endswith("ms") else float(value[:-1])


class FaultDevice:
    """Passes everything on to ``inner``, and does what the plan says before each call of the model."""

    def __init__(self, plan: list[FaultAction], inner: Device) -> None:
        self.name = inner.name
        self.chip = inner.chip
        self.simulated = inner.simulated
        self.threads = inner.threads
        self._plan = plan
        self._inner = inner
        self._armed = False
        self._step = 0

    def arm(self) -> None:
        """Count steps from now on: the warm-up is over."""
        self._armed = True

    def before_call(self) -> None:
        if not self._armed:
            return
        self._step += 1
        for action in self._plan:
            if action.applies(self._step):
                action.perform()

    def load(
        self,
        model_dir: Path,
        dtype: str,
        max_model_len: int | None,
        progress: ReportProgress,
        quantize: "QuantizeTo | None" = None,
    ) -> ModelRunner:
        return FaultRunner(self, self._inner.load(model_dir, dtype, max_model_len, progress, quantize))

    def memory(self) -> tuple[int, int]:
        return self._inner.memory()

    def classify(self, error: BaseException) -> Fault:
        return self._inner.classify(error)

    def after_step(self, busy_s: float, tokens: int) -> None:
        self._inner.after_step(busy_s, tokens)

    def set_cpu_share(self, share: float) -> None:
        self._inner.set_cpu_share(share)


class FaultRunner(WrappedRunner):
    def __init__(self, device: FaultDevice, inner: ModelRunner) -> None:
        super().__init__(inner)
        self._device = device

    def execute(self, batch: StepBatch, timer: StepTimer) -> "Tensor":
        with timer.part("device"):
            self._device.before_call()
        return super().execute(batch, timer)
