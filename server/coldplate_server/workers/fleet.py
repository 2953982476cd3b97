"""All workers: their processes and links, and which of them takes a stream."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coldplate.clock import Clock
from coldplate.device_id import DeviceId, name_in_spec, parse_group
from coldplate.limits import FIELD_NAMES, Limits
from coldplate_server.errors import AdmissionClosed, FeatureUnimplemented, NoWorker, RequestError, Shed
from coldplate_server.journal import StreamRecord
from coldplate_server.limit_book import InForce, LimitBook
from coldplate_server.request import Priority
from coldplate_server.settings import WorkerSpec
from coldplate_server.workers.link import LinkEvents, WorkerLink
from coldplate_server.workers.process import WorkerProcess

WorkerCommand = Callable[[WorkerSpec, str, int], list[str]]  # spec, address, how many are started

# What a worker gets to end by itself: vLLM ends several processes, and a chip that a killed one held may be lost.
_TERM_GRACE_S = {"native": 5.0, "vllm": 20.0}
_LOADING_RETRY_S = 2.0
_CLOSED_RETRY_S = 5.0
# Kept by the server itself, whatever the worker can do.
_OWN_LEVERS = frozenset({"max_batch", "max_new_tokens", "max_context_tokens", "min_priority", "admit"})


@dataclass(slots=True)
class Worker:
    """One worker: its link, and its process if the server started it."""

    spec: WorkerSpec
    link: WorkerLink
    process: WorkerProcess | None

    @property
    def failure(self) -> str | None:
        """Why it will never serve as it is configured."""
        return self.process.failure if self.process else None

    @property
    def devices(self) -> list[str]:
        """As the worker last told; before that, as its spec says."""
        return self.link.devices or (devices_of_spec(self.spec.device) if self.spec.device else [])

    @property
    def last_exit(self) -> str | None:
        return self.process.last_exit if self.process else None

    @property
    def restarts(self) -> int:
        return self.process.restarts if self.process else 0


class Fleet:
    """The workers of a server."""

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        command: WorkerCommand,
        socket_dir: Path,
        limits: LimitBook,
        clock: Clock,
        events: LinkEvents,
    ) -> None:
        self._limits = limits
        self._tasks: list[asyncio.Task[None]] = []
        self.workers: list[Worker] = []
        spawned = sum(spec.device is not None for spec in specs)
        for spec in specs:
            address = spec.address or f"unix:{socket_dir / spec.name}.sock"
            link = WorkerLink(spec, address, clock, events)
            process = None
            if spec.device is not None:
                process = WorkerProcess(
                    spec.name,
                    command(spec, address, spawned),
                    clock,
                    partial(events.worker_changed, link),
                    partial(getattr, link, "has_served"),
                    _TERM_GRACE_S[spec.engine],
                )
            self.workers.append(Worker(spec, link, process))

    def start(self) -> None:
        for worker in self.workers:
            if worker.process:
                self._tasks.append(asyncio.create_task(worker.process.run(), name=f"process of {worker.spec.name}"))
            self._tasks.append(asyncio.create_task(worker.link.run(), name=f"link to {worker.spec.name}"))

    async def stop(self) -> None:
        """End spawned workers, let go of attached ones."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def of_model(self, model: str) -> list[Worker]:
        return [worker for worker in self.workers if worker.spec.model.name == model]

    def by_name(self, name: str | None) -> Worker | None:
        return next((worker for worker in self.workers if worker.spec.name == name), None)

    def max_context(self, model: str) -> int | None:
        """The longest context any ready worker of the model has, in tokens; None while there is none."""
        hellos = [worker.link.hello for worker in self.of_model(model)]
        return max((hello.max_model_len for hello in hellos if hello), default=None)

    def context_now(self, model: str) -> int | None:
        """The same as far as limits leave it."""
        return max((self._context_of(worker) for worker in self.of_model(model) if worker.link.ready), default=None)

    def _context_of(self, worker: Worker) -> int:
        assert worker.link.hello is not None
        limit = self.limits_of(worker).max_context_tokens
        own = worker.link.hello.max_model_len
        return own if limit is None else min(own, limit)

    def kv_capacity(self, model: str) -> int | None:
        """The largest KV cache of any ready worker of the model, in tokens; None while there is none."""
        hellos = [worker.link.hello for worker in self.of_model(model)]
        return max((hello.kv_cache_tokens for hello in hellos if hello), default=None)

    def vocabulary(self, model: str) -> int | None:
        """Token ids every ready worker of the model can take; None while there is none."""
        hellos = [worker.link.hello for worker in self.of_model(model)]
        return min((hello.vocabulary_size for hello in hellos if hello), default=None)

    def throttled(self, name: str | None) -> bool:
        """Whether a duty limit paces the worker."""
        worker = self.by_name(name)
        duty = self.limits_of(worker).duty if worker else None
        return duty is not None and duty < 1

    def push_limits(self) -> None:
        """Bring every worker the limits in force on its devices."""
        for worker in self.workers:
            if worker.link.ready:
                worker.link.set_limits(self.limits_of(worker))

    def limits_of(self, worker: Worker) -> Limits:
        """In force for a worker: the tightest of its devices, which work as one."""
        return self.in_force(worker).limits

    def in_force(self, worker: Worker) -> InForce:
        return self._limits.in_force(*worker.devices)

    def levers_of(self, worker: Worker) -> tuple[str, ...]:
        """Limits that are honoured, by the worker or here; none of a worker that has not told yet."""
        if worker.link.hello is None:
            return ()
        honoured = _OWN_LEVERS.union(worker.link.hello.levers)
        return tuple(name for name in FIELD_NAMES if name in honoured)

    def refusal(self, model: str, priority: Priority) -> RequestError | None:
        """Why no worker of the model would take a new stream of this class now, if so."""
        ready = [worker for worker in self.of_model(model) if worker.link.ready]
        if not ready:
            return self._no_worker(model)
        limits = [self.limits_of(worker) for worker in ready]
        if all(limit.admit is False for limit in limits):
            return AdmissionClosed(
                "a limit closes every device of this model to new requests; try again later or elsewhere",
                retry_after_s=self._opens_in_s(ready),
            )
        if all(limit.admit is False or (limit.min_priority or 0) > priority for limit in limits):
            return Shed(
                f"requests of priority {priority.name.lower()} are refused for now by a limit",
                retry_after_s=self._opens_in_s(ready),
            )
        return None

    def cooling_s(self, model: str) -> float:
        """How long the governor expects every device of a model to start nothing; 0 while one may, or if not known."""
        ready = [worker for worker in self.of_model(model) if worker.link.ready]
        limits = [self.limits_of(worker) for worker in ready]
        if any(limit.admit is not False and limit.max_prefill_tokens != 0 for limit in limits):
            return 0.0
        return min((self._told_s(worker) or 0.0 for worker in ready), default=0.0)

    def _opens_in_s(self, workers: Sequence[Worker]) -> float:
        """When the first of closed workers may open again: as the governor expects, or a guess."""
        return min(self._told_s(worker) or _CLOSED_RETRY_S for worker in workers)

    def _told_s(self, worker: Worker) -> float | None:
        told = [self._limits.retry_after_s(device) for device in worker.devices]
        return max((seconds for seconds in told if seconds is not None), default=None)

    def check_features(self, model: str, needs: Mapping[str, str]) -> None:
        """Raise FeatureUnimplemented, naming the field that asks, when no ready worker of the model has all of them."""
        ready = [worker.link for worker in self.of_model(model) if worker.link.ready]
        if not needs or not ready or any(needs.keys() <= link.features for link in ready):
            return
        feature, field = next((item for item in needs.items() if item[0] not in ready[0].features), ("", ""))
        hello = ready[0].hello
        engine = f"{hello.engine} {hello.version}".strip() if hello else ""
        raise FeatureUnimplemented(
            f"{field} is not served by the engine of {model!r} ({engine}), which has no {feature}; leave it unset",
            field=field,
            feature=feature,
            engine=engine,
        )

    def _no_worker(self, model: str) -> NoWorker:
        workers = self.of_model(model)
        if workers and all(worker.failure for worker in workers):
            return NoWorker(f"no worker can serve {model!r}; the operator must mend its settings")
        if any(worker.link.loading for worker in workers):
            return NoWorker(f"{model!r} is loading; try again soon", retry_after_s=_LOADING_RETRY_S)
        return NoWorker(f"no worker serves {model!r} now; try again soon", retry_after_s=_LOADING_RETRY_S)

    def choose(self, record: StreamRecord, kept: AbstractSet[str] = frozenset()) -> Worker | None:
        """The worker to hand a stream to now, or None while none has room. Not one of those ``kept`` for others.

        That of its sibling, which has their prompt in its cache; else an NPU before the CPU, then the least busy.
        """
        workers = [worker for worker in self.of_model(record.model) if worker.spec.name not in kept]
        fit = [worker for worker in workers if self._has_room(worker, record)]
        beside = record.sibling_of.worker if record.sibling_of else None
        return next((worker for worker in fit if worker.spec.name == beside), min(fit, key=_rank, default=None))

    def could_take(self, record: StreamRecord) -> bool:
        """Whether an idle worker would take a stream: False where the context or cache of each is too small now."""
        return bool(self.takers(record))

    def takers(self, record: StreamRecord) -> set[str]:
        """The workers that would take a stream if they were idle, by name."""
        return {
            worker.spec.name
            for worker in self.of_model(record.model)
            if worker.link.hello is not None
            and record.needs.keys() <= worker.link.features
            and record.kv_tokens <= min(self._context_of(worker), worker.link.hello.kv_cache_tokens)
        }

    def _has_room(self, worker: Worker, record: StreamRecord) -> bool:
        link = worker.link
        if not link.ready or not link.credit.covers(record.admission_tokens):
            return False
        limits = self.limits_of(worker)
        assert link.hello is not None
        return (
            record.kv_tokens <= min(self._context_of(worker), link.hello.kv_cache_tokens)
            and record.needs.keys() <= link.features
            and limits.admit is not False
            and limits.max_prefill_tokens != 0  # it would wait there unseen, while another device may be free
            and (limits.min_priority or 0) <= record.priority
            and (limits.max_batch is None or self._running_on(link.devices[0]) < limits.max_batch)
        )

    def _running_on(self, device: str) -> int:
        """Streams on a device, whichever of its workers has them."""
        return sum(worker.link.running for worker in self.workers if device in worker.link.devices)


def devices_of_spec(spec: str) -> list[str]:
    """The devices a worker spec stands for: ``npu:0`` of ``sim:unix:/b.sock#npu:0``, both of ``npu:0-1``."""
    name = name_in_spec(spec)
    try:
        return [str(device) for device in parse_group(name)]
    except ValueError:
        return [name]  # the worker will say what is wrong with it


def _rank(worker: Worker) -> tuple[bool, float]:
    link = worker.link
    return DeviceId.parse(link.devices[0]).kind == "cpu", link.running / max(1, link.max_streams)
