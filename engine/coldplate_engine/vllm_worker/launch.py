"""Starting vLLM: environment, configuration, the governed scheduler, the processes."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import structlog

from coldplate.device_id import DeviceId, parse_group
from coldplate_engine.runner import ModelError, ReportProgress
from coldplate_engine.settings import EngineSettings
from coldplate_engine.threads import default_threads
from coldplate_engine.vllm_worker import environment
from coldplate_engine.vllm_worker.arguments import check_installed, configure, parse, vllm_flags
from coldplate_engine.vllm_worker.board import BASE_VARIABLE, BOARD_VARIABLE, CORES_VARIABLE, MAX_CORES, Board
from coldplate_engine.vllm_worker.child_log import ChildLog
from coldplate_engine.vllm_worker.failures import is_device_fault, one_line, root_cause
from coldplate_engine.vllm_worker.faults import FAULTS_VARIABLE

log = structlog.get_logger()

_SCHEDULER = "coldplate_engine.vllm_worker.scheduler.GovernedScheduler"


class DeviceFault(Exception):
    """vLLM did not start for a reason that lies with the device: one line."""


@dataclass(slots=True)
class Launched:
    """vLLM at work. ``cores`` is the number of its engine cores."""

    llm: Any
    config: Any
    board: Board
    cores: int
    devices: list[DeviceId]
    version: str
    threads: int
    output: ChildLog
    phases: list[tuple[str, float]] = field(default_factory=list)
    processes: list[psutil.Process] = field(default_factory=list)


def launch(settings: EngineSettings, progress: ReportProgress) -> Launched:
    """Start vLLM; call with an event loop running. Raises ModelError or DeviceFault, each one line."""
    version = check_installed()
    devices = _devices(settings)
    if not Path(settings.model).is_dir():
        raise ModelError(f"--model {settings.model}: there is no such folder")
    threads = settings.threads or max(1, default_threads() // settings.cpu_workers)
    environment.prepare(devices, threads)
    phases: list[tuple[str, float]] = []
    started = time.perf_counter()
    progress("import_vllm", 0.0)
    arguments = parse(vllm_flags(settings, devices[0].kind))
    if arguments.distributed_executor_backend != "ray" and getattr(arguments, "nnodes", 1) == 1:
        environment.on_this_machine_only()
    config = configure(arguments)
    _check_devices(config, devices)
    phases.append(("import_vllm", time.perf_counter() - started))
    board = Board.create()
    cores = _govern(config, board)
    output = ChildLog(progress)
    started = time.perf_counter()
    progress("engine_core", 0.0)
    llm = _start(config, output)
    phases.append(("engine_core", time.perf_counter() - started))
    return Launched(llm, config, board, cores, devices, version, threads, output, phases)


def _devices(settings: EngineSettings) -> list[DeviceId]:
    """Of ``--device``; a fault plan goes to the engine cores, which perform it."""
    spec = settings.device
    os.environ.pop(FAULTS_VARIABLE, None)
    if spec.startswith("fault:"):
        plan, _, spec = spec.removeprefix("fault:").rpartition(",")
        if not settings.test_faults:
            raise ModelError(f"--device {settings.device!r} fails on purpose: allowed with --test-faults only")
        os.environ[FAULTS_VARIABLE] = plan
    try:
        return parse_group(spec)
    except ValueError as error:
        raise ModelError(f"--device {spec}: {error}") from None


def _check_devices(config: Any, devices: list[DeviceId]) -> None:
    parallel = config.parallel_config
    needed = parallel.world_size * parallel.data_parallel_size
    if devices[0].kind == "npu" and parallel.distributed_executor_backend != "ray" and needed != len(devices):
        raise ModelError(
            f"--device names {len(devices)} chips, but tensor × pipeline × data parallel size needs {needed}: name all "
            "chips of the group, such as npu:0-3"
        )


def _govern(config: Any, board: Board) -> int:
    """Put our scheduler over the one vLLM has chosen; returns the number of engine cores."""
    chosen = config.scheduler_config.get_scheduler_cls()
    config.scheduler_config.scheduler_cls = _SCHEDULER
    cores = config.parallel_config.data_parallel_size
    if cores > MAX_CORES:
        raise ModelError(f"--data-parallel-size {cores}: at most {MAX_CORES} engine cores can be governed")
    os.environ[BASE_VARIABLE] = f"{chosen.__module__}.{chosen.__qualname__}"
    os.environ[BOARD_VARIABLE] = board.address
    os.environ[CORES_VARIABLE] = str(cores)
    return int(cores)


def _start(config: Any, output: ChildLog) -> Any:
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        with output.inherited():
            return AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    except Exception as error:
        cause = one_line(root_cause(output.lines()) or f"{type(error).__name__}: {error}")
        log.error("vllm did not start", cause=cause)
        if is_device_fault(cause):
            raise DeviceFault(cause) from error
        raise ModelError(f"vLLM did not start: {cause}") from error
