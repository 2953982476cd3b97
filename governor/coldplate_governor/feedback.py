"""What the server's reply says of each device, over all the workers that use it."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from coldplate.durations import to_seconds
from coldplate.limits import FIELD_NAMES
from coldplate.v1 import device_pb2

_UP = frozenset(
    {
        device_pb2.DEVICE_STATE_SERVING,
        device_pb2.DEVICE_STATE_THROTTLED,
        device_pb2.DEVICE_STATE_CLOSED,
        device_pb2.DEVICE_STATE_DRAINING,
    }
)


@dataclass(frozen=True, slots=True)
class DeviceFeedback:
    """One device as the server sees it.

    ``other_duty`` is a duty in force that is tighter than the governor's own: an operator's, or that of another device
    of the same group. ``waiting`` streams are queued for it, the oldest for ``queue_wait_s``; ``busy_share`` of the
    last second it computed, at the rates given. ``engine_up`` tells whether a worker serves on it, ``alternative``
    whether another device serves the same models. ``levers`` are the limits that every worker on it honours; () is
    unknown.
    """

    running: int | None = None
    other_duty: float | None = None
    waiting: int | None = None
    queue_wait_s: float | None = None
    busy_share: float | None = None
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    decode_steps_per_s: float | None = None
    engine_up: bool | None = None
    alternative: bool | None = None
    draining: bool = False
    levers: tuple[str, ...] = ()


def feedback_of(
    statuses: Iterable[device_pb2.DeviceStatus], sent_duty: Mapping[str, float | None]
) -> dict[str, DeviceFeedback]:
    """By device; ``sent_duty`` is what the governor has just asked for, None for no limit."""
    by_device: dict[str, list[device_pb2.DeviceStatus]] = {}
    for status in statuses:
        by_device.setdefault(status.device, []).append(status)
    up = {(status.worker, status.model) for found in by_device.values() for status in found if status.state in _UP}
    return {device: _merged(found, sent_duty.get(device), up) for device, found in by_device.items()}


def _merged(
    workers: list[device_pb2.DeviceStatus], sent: float | None, up: AbstractSet[tuple[str, str]]
) -> DeviceFeedback:
    own = {worker.worker for worker in workers}
    elsewhere = {model for worker, model in up if worker not in own}
    duties = [worker.limits.duty for worker in workers if worker.limits.HasField("duty")]
    duty = min(duties, default=None)
    queued = {worker.model: worker.queued for worker in workers}  # the queue is the model's, whoever serves it
    honoured = [set(worker.levers) for worker in workers if worker.levers]
    common = set.intersection(*honoured) if honoured else set()
    return DeviceFeedback(
        running=sum(worker.running for worker in workers),
        other_duty=duty if duty is not None and (sent is None or duty < sent) else None,
        waiting=sum(queued.values()),
        queue_wait_s=max(to_seconds(worker.queue_wait) for worker in workers),
        busy_share=min(1.0, sum(worker.busy_share for worker in workers)),
        prefill_tokens_per_s=sum(worker.prefill_tokens_per_second for worker in workers),
        decode_tokens_per_s=sum(worker.tokens_per_second for worker in workers),
        decode_steps_per_s=float(sum(worker.step_times.steps for worker in workers)),
        alternative=queued.keys() <= elsewhere,
        draining=any(worker.state == device_pb2.DEVICE_STATE_DRAINING for worker in workers),
        engine_up=any(worker.state in _UP for worker in workers),
        levers=tuple(name for name in FIELD_NAMES if name in common),
    )
