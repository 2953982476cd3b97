"""The CPU as a device."""

import ctypes
import time
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from coldplate.cgroup import Cgroup
from coldplate_engine.devices.errors import classify_error
from coldplate_engine.kernels.build import BuildError
from coldplate_engine.kernels.library import KernelMode, load_library
from coldplate_engine.kernels.linear import linear_maker
from coldplate_engine.models.decoder_runner import DecoderRunner, load_decoder
from coldplate_engine.runner import Fault, ModelError, ReportProgress
from coldplate_engine.threads import default_threads
from coldplate_engine.weights.convert import QuantizeTo

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_CPU_INFO = Path("/proc/cpuinfo")
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # x86's flags; aarch64 lists plain "bf16"


class CpuDevice:
    """Computes on this process's share of the machine. ``threads`` None: what the machine and its limits allow."""

    name = "cpu"
    simulated = False

    def __init__(
        self,
        threads: int | None = None,
        cpu_info: Path = _CPU_INFO,
        cgroup: Cgroup | None = None,
        kernels: KernelMode = "auto",
    ) -> None:
        self.threads = threads or default_threads()
        self._kernel_mode: KernelMode = kernels
        self._library: ctypes.CDLL | None = None
        self._info = _read_cpu_info(cpu_info)
        self._cgroup = cgroup or Cgroup()
        self._threads_now = self.threads

    @property
    def chip(self) -> str:
        """The processor's own name, or "cpu" where the system does not tell."""
        return self._info.get("model name") or self._info.get("Hardware") or "cpu"

    def load(
        self,
        model_dir: Path,
        dtype: str,
        max_model_len: int | None,
        progress: ReportProgress,
        quantize: QuantizeTo | None = None,
    ) -> DecoderRunner:
        """See ``Device.load``. ``dtype`` "auto" is bfloat16 where there are kernels or the processor computes in
        it, else float32."""
        began = time.perf_counter()
        try:
            self._library = load_library(self._kernel_mode, lambda share: progress("kernels", share))
        except BuildError as error:
            raise ModelError(f"--kernels on: {error}") from None
        kernels_s = time.perf_counter() - began
        self._apply_threads()
        make_linear = linear_maker(self._library)
        runner = load_decoder(
            model_dir,
            self._dtype(dtype),
            max_model_len,
            make_linear,
            progress,
            self._apply_threads,
            quantize,
            self._library,
        )
        runner.facts = replace(runner.facts, load_phases=(("kernels", kernels_s), *runner.facts.load_phases))
        return runner

    def memory(self) -> tuple[int, int]:
        """Bytes available and in all, as far as the control group allows."""
        machine = psutil.virtual_memory()
        limited = self._cgroup.memory()
        if limited is None:
            return machine.available, machine.total
        return min(machine.available, limited[0]), min(machine.total, limited[1])

    def classify(self, error: BaseException) -> Fault:
        return classify_error(error)

    def after_step(self, busy_s: float, tokens: int) -> None:
        """Nothing to pace: a real CPU takes its own time."""

    def set_cpu_share(self, share: float) -> None:
        """Use this share of the threads, at least one, from the next step on."""
        self._threads_now = max(1, round(self.threads * min(1.0, share)))

    def _apply_threads(self) -> None:
        # The number of OpenMP threads belongs to the calling thread, so the one that computes must set it.
        if torch.get_num_threads() != self._threads_now:
            torch.set_num_threads(self._threads_now)
        if self._library is not None:
            self._library.coldplate_set_threads(self._threads_now)

    def _dtype(self, name: str) -> torch.dtype:
        if name == "auto":
            flags = (self._info.get("flags") or self._info.get("Features") or "").split()
            # The kernels widen bfloat16 as they read it, so half the bytes pay on any processor.
            name = "bfloat16" if self._library is not None or _BF16_FLAGS.intersection(flags) else "float32"
        if name not in DTYPES:
            raise ModelError(f"dtype {name!r} is not supported on the CPU; use auto, {', '.join(DTYPES)}")
        return DTYPES[name]


def _read_cpu_info(path: Path) -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo, empty where there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
