"""The state of the service as the messages of DeviceService, for every service that shows it."""

from dataclasses import asdict

from coldplate.clock import Clock
from coldplate.durations import to_duration
from coldplate.limits_proto import limits_to_proto
from coldplate.v1 import device_pb2 as pb
from coldplate_server.admission.lane import Lane
from coldplate_server.dispatcher import Dispatcher
from coldplate_server.limit_book import InForce, LimitBook
from coldplate_server.workers.fleet import Fleet, Worker

_SOURCES = {
    "operator": pb.LIMIT_SOURCE_OPERATOR,
    "governor": pb.LIMIT_SOURCE_GOVERNOR,
    "safe": pb.LIMIT_SOURCE_SAFE,
}
_LONGEST_WAIT_S = 86_400.0  # shown for a queue that does not move
_GOVERNOR_STATES = {
    "ungoverned": pb.GOVERNOR_STATE_UNGOVERNED,
    "governed": pb.GOVERNOR_STATE_GOVERNED,
    "lost": pb.GOVERNOR_STATE_LOST,
}


class StatusView:
    """Reads fleet, limits and queue; changes nothing but its memory of since when a device is in its state."""

    def __init__(self, fleet: Fleet, limits: LimitBook, dispatcher: Dispatcher, clock: Clock) -> None:
        self._fleet = fleet
        self._limits = limits
        self._dispatcher = dispatcher
        self._clock = clock
        self._started = clock.now()
        self._since: dict[str, tuple[pb.DeviceState, float]] = {}

    @property
    def uptime_s(self) -> float:
        return self._clock.now() - self._started

    def service(self, device: str = "") -> pb.ServiceStatus:
        return pb.ServiceStatus(
            devices=self.devices(device),
            governor=self.governor(),
            queued=len(self._dispatcher.queue),
            running=sum(worker.link.running for worker in self._fleet.workers),
            draining=self._dispatcher.draining,
            uptime=to_duration(self.uptime_s),
        )

    def governor(self) -> pb.GovernorStatus:
        view = self._limits.governor()
        return pb.GovernorStatus(
            state=_GOVERNOR_STATES[view.state],
            name=view.name,
            epoch=view.epoch,
            lease_left=to_duration(view.lease_left_s),
            since_change=to_duration(view.since_change_s),
        )

    def devices(self, device: str = "") -> list[pb.DeviceStatus]:
        """One entry for each device of each worker; ``device`` picks those of one name."""
        waiting = self._waiting()
        return [
            self._device(worker, name, waiting.get(worker.spec.model.name, []))
            for worker in self._fleet.workers
            for name in worker.devices
            if device in ("", name)
        ]

    def _waiting(self) -> dict[str, list[float]]:
        """How long the streams in the queue have waited, in seconds, by model."""
        now, waits = self._clock.now(), dict[str, list[float]]()
        for record in self._dispatcher.queue:
            waits.setdefault(record.model, []).append(now - record.arrived)
        return waits

    def load(self) -> pb.Load:
        ready = [worker for worker in self._fleet.workers if worker.link.ready]
        queue = self._dispatcher.queue
        running = sum(worker.link.running for worker in ready)
        slots = sum(self._slots(worker) for worker in ready)
        kv = max((_kv_share(worker) for worker in ready), default=0.0)
        queue_limit = queue.policy.max_waiting
        queue_share = len(queue) / queue_limit if queue_limit else 0.0
        return pb.Load(
            running=running,
            queued=len(queue),
            queue_limit=queue_limit,
            queue_wait=to_duration(queue.last_wait_s),
            kv_utilization=kv,
            tokens_per_second=sum(worker.link.steps.means().tokens_per_second for worker in ready),
            utilization=min(1.0, max(running / slots if slots else 1.0, kv, queue_share)),
            accepting=not self._dispatcher.draining and any(self._accepts(worker) for worker in ready),
            classes=[_class_load(lane) for lane in queue.lanes],
        )

    def _slots(self, worker: Worker) -> int:
        cap = self._fleet.limits_of(worker).max_batch
        return worker.link.max_streams if cap is None else min(cap, worker.link.max_streams)

    def _accepts(self, worker: Worker) -> bool:
        return self._fleet.limits_of(worker).admit is not False

    def _device(self, worker: Worker, name: str, waits_s: list[float]) -> pb.DeviceStatus:
        link = worker.link
        in_force = self._fleet.in_force(worker)
        directive = self._limits.directive(name)
        state, detail = self._state(worker, in_force)
        means = link.steps.means()
        status = pb.DeviceStatus(
            device=name,
            worker=worker.spec.name,
            model=worker.spec.model.name,
            state=state,
            detail=detail,
            since_change=to_duration(self._since_change(f"{worker.spec.name}/{name}", state)),
            limits=limits_to_proto(in_force.limits),
            bindings=[pb.LimitBinding(limit=key, source=_SOURCES[source]) for key, source in in_force.binding.items()],
            restarts=worker.restarts,
            running=link.running,
            queued=len(waits_s),
            queue_wait=to_duration(max(waits_s, default=0.0)),
            busy_share=means.busy_share,
            tokens_per_second=means.tokens_per_second,
            prefill_tokens_per_second=means.prefill_tokens_per_second,
            step_times=pb.StepTimes(
                steps=means.steps,
                schedule=means.schedule,
                host_prep=means.host_prep,
                copy=means.copy,
                device=means.device,
                sample=means.sample,
                idle=means.idle,
                paced=means.paced,
            ),
        )
        if (age_s := self._limits.operator_age_s(name)) is not None:
            for binding in status.bindings:
                if binding.source == pb.LIMIT_SOURCE_OPERATOR:
                    binding.age.CopyFrom(to_duration(age_s))
        if directive is not None:
            if directive.explanation is not None:
                status.explanation.CopyFrom(directive.explanation)
            status.governor_mode = directive.mode
            status.reasons.extend(directive.reasons)
            if directive.readings is not None:
                status.readings.CopyFrom(directive.readings)
        if (hello := link.hello) is not None:
            stats = link.steps.latest
            status.simulated, status.chip, status.threads = hello.simulated, hello.chip, hello.threads
            status.levers.extend(self._fleet.levers_of(worker))
            status.pending = stats.waiting
            status.kv_tokens_used = stats.kv_blocks_used * hello.block_size
            status.kv_tokens_total = hello.kv_cache_tokens
            status.kv_tokens_cached = stats.kv_blocks_cached * hello.block_size
            status.totals.CopyFrom(pb.WorkerTotals(**asdict(link.steps.totals)))
        return status

    def _state(self, worker: Worker, in_force: InForce) -> tuple[pb.DeviceState, str]:
        link = worker.link
        if worker.failure:
            return pb.DEVICE_STATE_FAILED, worker.failure
        if not link.ready:
            if worker.last_exit is None:
                at = f" ({link.loading.phase}, {link.loading.progress:.0%})" if link.loading else ""
                return pb.DEVICE_STATE_LOADING, f"the worker is loading{at}"
            return pb.DEVICE_STATE_LOST, f"the worker ended ({worker.last_exit}) and is being started again"
        if self._dispatcher.draining:
            return pb.DEVICE_STATE_DRAINING, "no new requests are taken; running ones go on"
        if in_force.limits.admit is False:
            return pb.DEVICE_STATE_CLOSED, f"closed to new requests by the {in_force.binding['admit']} limits"
        honoured = self._fleet.levers_of(worker)
        if kept := [f"{key} ({source})" for key, source in in_force.binding.items() if key in honoured]:
            return pb.DEVICE_STATE_THROTTLED, f"limited: {', '.join(kept)}"
        return pb.DEVICE_STATE_SERVING, ""

    def _since_change(self, key: str, state: pb.DeviceState) -> float:
        known, since = self._since.get(key, (None, 0.0))
        if known != state:
            since = self._clock.now()
            self._since[key] = (state, since)
        return self._clock.now() - since


def _class_load(lane: Lane) -> pb.ClassLoad:
    load = pb.ClassLoad(
        model=lane.model,
        priority=lane.priority,
        waiting=len(lane),
        tenants_waiting=lane.share.waiting,
        waiting_tokens=lane.waiting_tokens,
        in_flight_tokens=lane.waiting_tokens + lane.running_tokens,
        queue_wait=to_duration(min(lane.limit.wait_s, _LONGEST_WAIT_S)),
        wait_target=to_duration(lane.target_s),
        refused=lane.refused,
        shed=lane.shed,
    )
    if lane.limit.tokens is not None:
        load.in_flight_limit_tokens = lane.running_tokens + round(lane.limit.tokens)
    expected_s = lane.expected_wait_s(lane.waiting_tokens)
    if expected_s is not None:
        load.expected_wait.CopyFrom(to_duration(min(expected_s, _LONGEST_WAIT_S)))
    return load


def _kv_share(worker: Worker) -> float:
    stats = worker.link.steps.latest
    return stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
