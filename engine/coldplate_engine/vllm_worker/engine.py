"""The worker's engine when it is vLLM: start it, bring it commands, watch over it, and end all its processes."""

import asyncio
import contextlib
import threading
from collections.abc import Callable

import psutil
import structlog

from coldplate_engine.inbox import EXIT_REPLACE_DEVICE, Inbox
from coldplate_engine.messages import EngineError
from coldplate_engine.runner import ReportProgress
from coldplate_engine.settings import EngineSettings
from coldplate_engine.vllm_worker.desk import Counter, Desk
from coldplate_engine.vllm_worker.facts import facts_of, features_of
from coldplate_engine.vllm_worker.failures import kind_of, root_cause
from coldplate_engine.vllm_worker.launch import DeviceFault, Launched, launch
from coldplate_engine.vllm_worker.shared_memory import unname_shared_memory
from coldplate_engine.worker_facts import WorkerFacts

log = structlog.get_logger()

# An NPU process that is killed can leave its chip unusable for the next one: it gets time to let go. On a CPU there is
# nothing to let go of, and vLLM's own shut-down waits for seconds.
_STOP_S = {"cpu": 0.5, "npu": 15.0}
_KILL_WAIT_S = 2.0


class VllmEngine:
    """``Engine`` for vLLM; the same in its making and running. ``on_ready`` is called once, before the first step."""

    LAST_WORDS_S = max(_STOP_S.values()) + _KILL_WAIT_S

    def __init__(
        self, settings: EngineSettings, inbox: Inbox, progress: ReportProgress, on_ready: Callable[[WorkerFacts], None]
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._progress = progress
        self._on_ready = on_ready

    def run(self) -> int:
        """Start vLLM and serve until the end; returns the exit code.

        Raises ModelError when the model, a setting or vLLM itself is unusable.
        """
        return asyncio.run(self._run())

    async def _run(self) -> int:
        try:
            launched = launch(self._settings, self._progress)
        except DeviceFault as fault:
            log.error("device must be replaced: worker ends", reason=str(fault))
            return EXIT_REPLACE_DEVICE
        try:
            return await self._serve(launched)
        finally:
            _stop(launched)

    async def _serve(self, launched: Launched) -> int:
        config = launched.config
        size = config.cache_config.block_size
        states = [launched.board.state(core) for core in range(launched.cores)]
        kv_cache_tokens = sum(state.blocks_total for state in states if state is not None) * size
        facts = facts_of(self._settings, launched, size, kv_cache_tokens)
        counter = Counter(
            max_num_seqs=facts.max_num_seqs,
            max_model_len=facts.max_model_len,
            block_size=size,
            ids=facts.model.vocabulary_size,
            cores=launched.cores,
            features=frozenset(features_of(config)),
            by_priority=config.scheduler_config.policy == "priority",
        )
        unname_shared_memory()
        launched.processes = psutil.Process().children(recursive=True)
        desk = Desk(launched.llm, launched.board, counter, lambda: _cause_of_death(launched))
        launched.output.forget()
        log.info(
            "engine ready",
            model=facts.served_model_name,
            engine=f"vLLM {facts.version}",
            devices=[facts.device, *facts.further_devices],
            dtype=facts.model.dtype,
            kv_cache_tokens=kv_cache_tokens,
            max_model_len=facts.max_model_len,
            load_s={name: round(seconds, 2) for name, seconds in facts.load_phases},
        )
        self._on_ready(facts)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._bring_commands, args=(loop, desk), name="vllm-commands", daemon=True).start()
        watching = asyncio.create_task(desk.watch())
        try:
            return await desk.ended
        finally:
            watching.cancel()

    def _bring_commands(self, loop: asyncio.AbstractEventLoop, desk: Desk) -> None:
        """In a thread of its own: the inbox is one to wait at."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed: the engine has ended
            while True:
                if commands := self._inbox.take(None):
                    loop.call_soon_threadsafe(desk.apply, commands)


def _cause_of_death(launched: Launched) -> tuple[EngineError, str]:
    text = root_cause(launched.output.lines()) or "an engine core ended without a word: it was killed"
    return kind_of(text), text


def _stop(launched: Launched) -> None:
    """End vLLM in its own way, and what is left of it after its time."""
    ours = {*launched.processes, *psutil.Process().children(recursive=True)}  # a rank may have lost its engine core
    stopping = threading.Thread(target=_shut_down, args=(launched,), name="vllm-stop", daemon=True)
    stopping.start()
    stopping.join(_STOP_S.get(launched.devices[0].kind, _STOP_S["npu"]))
    end_processes(list(ours))


def _shut_down(launched: Launched) -> None:
    try:
        launched.llm.shutdown()
    except Exception as error:
        log.warning("vllm did not shut down cleanly", error=f"{type(error).__name__}: {error}")


def end_processes(processes: list[psutil.Process]) -> None:
    """Kill those that still run, and wait for their end."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=_KILL_WAIT_S)
