"""From settings to a running loop: load, size the cache, warm up, run. All in the thread that calls ``Engine.run``.

Loading and stepping share that thread because some devices bind their context to it.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeVar

import psutil
import structlog

from coldplate.clock import MonotonicClock
from coldplate.device_id import split_modelled
from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.block_pool import BlockPool
from coldplate_engine.guided.load import load_constraints
from coldplate_engine.inbox import Inbox
from coldplate_engine.kv_sizing import GIB, KvPlan, MemoryNeeds, check_host_memory, check_weights_fit, plan_kv, show
from coldplate_engine.loop import EngineLoop
from coldplate_engine.offload import HostBlocks, HostCache
from coldplate_engine.runner import Device, ModelError, ModelRunner, ReportProgress
from coldplate_engine.scheduler import Scheduler
from coldplate_engine.settings import EngineSettings
from coldplate_engine.speculation import Speculator
from coldplate_engine.step_executor import StepExecutor
from coldplate_engine.step_timer import StepTimer
from coldplate_engine.worker_facts import WorkerFacts

if TYPE_CHECKING:
    from coldplate_engine.guided.compiler import ConstraintCompiler

log = structlog.get_logger()
T = TypeVar("T")

LEVERS = ("duty", "max_batch", "max_prefill_tokens", "max_reasoning_tokens", "cpu_share")
FEATURES = ("penalties", "logit_bias", "min_tokens", "logprobs", "prompt_logprobs", "thinking")
_WARM_UP_TOKENS = 32
_LOGITS_BYTES = 64 << 20


class Engine:
    """One model on one device. ``on_ready`` is called once, before the first step."""

    LAST_WORDS_S = 1.0  # from the order to end at once to the end of a hanging process

    def __init__(
        self, settings: EngineSettings, inbox: Inbox, progress: ReportProgress, on_ready: Callable[[WorkerFacts], None]
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._progress = progress
        self._on_ready = on_ready
        self._phases: list[tuple[str, float]] = []

    def run(self) -> int:
        """Load and serve until the end; returns the exit code.

        Raises ModelError when the model or a setting is unusable.
        """
        settings = self._settings
        device = self._timed("device", self._open_device)
        before = device.memory()[0]
        check_weights_fit(_checkpoint_bytes(settings), before, settings.quantize)
        runner = self._timed(
            "weights",
            lambda: device.load(
                settings.model, settings.dtype, settings.max_model_len, self._progress, settings.quantize
            ),
        )
        self._show_inside("weights", runner.facts.load_phases)
        max_model_len = self._max_model_len(runner)
        check_weights_fit(runner.facts.weight_bytes, before)
        constraints = ThreadPoolExecutor(1).submit(load_constraints, settings.model, runner.facts.end_of_text_ids)
        needs = self._memory_needs(device, runner, min(before, device.memory()[0] + runner.facts.weight_bytes))
        kv = self._size_kv(runner, max_model_len, needs)
        self._timed("kv_cache", lambda: runner.allocate_kv(kv.num_blocks, kv.block_size))
        self._timed("warm_up", lambda: self._warm_up(device, runner, kv, max_model_len))
        compiler = self._timed("constraints", constraints.result)
        loop = self._build_loop(device, runner, kv, max_model_len, compiler)
        log.info(
            "engine ready",
            model=settings.name,
            device=device.name,
            chip=device.chip,
            dtype=runner.facts.dtype,
            threads=device.threads,
            memory=needs.sum(kv),
            max_model_len=max_model_len,
            weights_read=f"{show(runner.facts.read_bytes)} at {runner.facts.read_mb_per_s:.0f} MB/s",
            load_s={name: round(seconds, 2) for name, seconds in self._phases},
        )
        self._on_ready(self._facts(device, runner, kv, max_model_len, guided=compiler is not None))
        return loop.run()

    def _open_device(self) -> Device:
        import torch

        from coldplate_engine.devices.registry import open_device
        from coldplate_engine.threads import default_threads

        threads = self._settings.threads or max(1, default_threads() // self._settings.cpu_workers)
        torch.set_num_threads(threads)
        return open_device(self._settings.device, threads, self._settings.test_faults, self._settings.kernels)

    def _max_model_len(self, runner: ModelRunner) -> int:
        has, wanted = runner.facts.max_model_len, self._settings.max_model_len
        if wanted is not None and wanted > has:
            raise ModelError(f"--max-model-len {wanted} is above the {has} this model was made for")
        return wanted or has

    def _memory_needs(self, device: Device, runner: ModelRunner, available: int) -> MemoryNeeds:
        settings = self._settings
        needs = MemoryNeeds(
            available=available,
            weights=runner.facts.weight_bytes,
            workspace=lambda tokens: runner.workspace_bytes(tokens, self._most_rows(runner)),
            step_tokens=settings.max_num_batched_tokens,
            offload=int(settings.kv_offload_gib * GIB),
            offload_on_device=device.name.startswith("cpu"),
        )
        if not needs.offload_on_device:
            check_host_memory(needs.offload, psutil.virtual_memory().available)
        return needs

    def _most_rows(self, runner: ModelRunner) -> int:
        """Rows of logits in one call: what a step of answers needs, or more where a prompt's fit in little memory."""
        answers = self._settings.max_num_seqs * (1 + self._settings.num_speculative_tokens)
        return max(answers, _LOGITS_BYTES // (4 * runner.facts.vocabulary_size))

    def _size_kv(self, runner: ModelRunner, max_model_len: int, needs: MemoryNeeds) -> KvPlan:
        settings = self._settings
        return plan_kv(
            needs,
            bytes_per_token=runner.kv_bytes_per_token(),
            block_size=settings.block_size,
            useful_tokens=settings.max_num_seqs * max_model_len,
            tokens=settings.kv_cache_tokens,
            gib=settings.kv_cache_gib,
        )

    def _offload(self, device: Device, runner: ModelRunner, kv: KvPlan) -> tuple[HostCache, HostBlocks] | None:
        """Host memory for prefix blocks, when at least one block of it is wanted."""
        block_bytes = kv.bytes // kv.num_blocks
        slots = int(self._settings.kv_offload_gib * GIB) // block_bytes
        pinned = not (device.simulated or device.name.startswith("cpu"))
        return (HostCache(slots), HostBlocks(runner, slots, block_bytes, pinned)) if slots else None

    def _build_loop(
        self,
        device: Device,
        runner: ModelRunner,
        kv: KvPlan,
        max_model_len: int,
        constraints: "ConstraintCompiler | None",
    ) -> EngineLoop:
        from coldplate_engine.step_sampler import StepSampler

        settings = self._settings
        host, host_blocks = self._offload(device, runner, kv) or (None, None)
        scheduler = Scheduler(
            BlockPool(kv.num_blocks, kv.block_size),
            settings.max_num_seqs,
            settings.max_num_batched_tokens,
            max_model_len,
            prefix_caching=settings.enable_prefix_caching,
            host=host,
        )
        sampler = StepSampler()
        executor = StepExecutor(
            device,
            runner,
            sampler,
            settings.max_num_batched_tokens,
            host_blocks=host_blocks,
            max_rows=self._most_rows(runner),
        )
        return EngineLoop(
            scheduler,
            executor,
            device,
            runner.facts.vocabulary_size,
            self._inbox,
            MonotonicClock(),
            sampler=sampler,
            end_of_text=runner.facts.end_of_text_ids,
            constraints=constraints,
            speculator=_speculator(settings),
        )

    def _warm_up(self, device: Device, runner: ModelRunner, kv: KvPlan, max_model_len: int) -> None:
        """A prefill and a decode, so that the first request meets no first-time cost."""
        from coldplate_engine.devices.fault import FaultDevice

        self._progress("warm_up", 0.0)
        prompt = max(1, min(_WARM_UP_TOKENS, kv.tokens - 1, max_model_len - 1))
        table = list(range(-(-(prompt + 1) // kv.block_size)))[: kv.num_blocks]
        runner.execute(StepBatch([StreamSlice(0, [0] * prompt, 0, table, 1)]), StepTimer())
        if prompt < kv.tokens:
            runner.execute(StepBatch([StreamSlice(0, [0], prompt, table, 1)]), StepTimer())
        if isinstance(device, FaultDevice):
            device.arm()

    def _facts(self, device: Device, runner: ModelRunner, kv: KvPlan, max_model_len: int, guided: bool) -> WorkerFacts:
        settings = self._settings
        return WorkerFacts(
            version=version("coldplate"),
            served_model_name=settings.name,
            model=runner.facts,
            max_model_len=max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            block_size=settings.block_size,
            kv_cache_tokens=kv.tokens,
            device=device.name,
            chip=device.chip,
            simulated=device.simulated,
            threads=device.threads,
            levers=tuple(lever for lever in LEVERS if lever != "cpu_share" or device.threads > 1),
            load_phases=tuple(self._phases),
            pid=os.getpid(),
            features=(*FEATURES, "guided") if guided else FEATURES,
            engine_settings=_further_settings(settings),
            kv_cache_bytes=kv.bytes,
        )

    def _timed(self, phase: str, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        try:
            return work()
        finally:
            self._phases.append((phase, time.perf_counter() - start))

    def _show_inside(self, phase: str, parts: tuple[tuple[str, float], ...]) -> None:
        """Put what a phase consists of in its place, where the device tells."""
        if parts:
            self._phases = [pair for pair in self._phases if pair[0] != phase] + list(parts)


def _speculator(settings: EngineSettings) -> Speculator | None:
    if not settings.num_speculative_tokens:
        return None
    return Speculator(settings.num_speculative_tokens, settings.prompt_lookup_min, settings.prompt_lookup_max)


def _further_settings(settings: EngineSettings) -> dict[str, str]:
    """Settings worth knowing that the hello message has no field for, by the names of their flags."""
    names = ["enable_prefix_caching", "num_speculative_tokens"]
    if settings.quantize is not None:
        names.append("quantize")
    if settings.kv_offload_gib:
        names.append("kv_offload_gib")
    if settings.num_speculative_tokens:
        names += ["prompt_lookup_min", "prompt_lookup_max"]
    known = {name: str(getattr(settings, name)) for name in names}
    modelled_as = split_modelled(settings.device)[1]
    if modelled_as is not None:
        known["simulated"] = f"scripted tokens at the pace of {modelled_as or 'this model'}"
    return known


def _checkpoint_bytes(settings: EngineSettings) -> int:
    """Size of the weights on disk, 0 when the loader should explain what is wrong with the folder."""
    model = settings.model
    files = [model] if model.is_file() else [*model.glob("*.safetensors")] or [*model.glob("*.gguf")]
    return sum(file.stat().st_size for file in files if file.is_file())
