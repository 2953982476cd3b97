"""What the governor does and why, for Prometheus: made to be alerted on, where a temperature by itself is not.

A device that works hard sits near its target; that is no alarm. The control error, the firmware acting by itself, a
sensor that is lost, and a record that is not kept are.
"""

import typing
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from coldplate_governor.explain.recorder import RecordCounts
from coldplate_governor.explain.trail import Account
from coldplate_governor.law import Binding
from coldplate_governor.sensors.device import DeviceReadings

_BINDINGS: tuple[str, ...] = typing.get_args(Binding)
_TERMS = ("p", "i", "d", "feed_forward", "raw", "slewed", "applied")


def account_metrics(accounts: Mapping[str, Account]) -> Iterator[Metric]:
    """By device. What plays no part now has no sample."""
    binding = _gauge("binding", "1 for the constraint that binds.", "device", "constraint")
    error = _gauge("control_error_celsius", "Filtered temperature less the target: above 0 is too hot.", "device")
    terms = _gauge(
        "term", "Terms of the controller, shares of full speed; raw and slewed are before bounds.", "device", "term"
    )
    left = _gauge("seconds_to_firmware_limit", "Until the firmware throttles, at the present pace.", "device")
    since = _gauge("mode_seconds", "Since the mode was entered.", "device")
    changes = _counter("changes", "Changes of what a device gets, each recorded.", "device")
    events = _counter("firmware_events", "How often the firmware has begun to throttle.", "device")
    for device, account in accounts.items():
        decision = account.decision
        for name in _BINDINGS:
            binding.add_metric([device, name], float(decision.binding == name))
        if decision.terms.error is not None:
            error.add_metric([device], -decision.terms.error)
        for name in _TERMS:
            if (value := getattr(decision.terms, name)) is not None:
                terms.add_metric([device, name], value)
        if decision.terms.seconds_to_limit is not None:
            left.add_metric([device], decision.terms.seconds_to_limit)
        since.add_metric([device], account.at_s - account.mode_since_s)
        changes.add_metric([device], account.changes_made)
        events.add_metric([device], account.firmware_events)
    yield from (binding, error, terms, left, since, changes, events)


def sensor_metrics(readings: Mapping[str, DeviceReadings]) -> Iterator[Metric]:
    """How many quantities of a device are lost, and how many have a newest reading that is not believed."""
    gone = _gauge("readings_lost", "Quantities that were measured once and have stopped.", "device")
    strange = _gauge("readings_doubted", "Quantities whose newest reading is not believed.", "device")
    for device, found in readings.items():
        gone.add_metric([device], len(found.lost))
        strange.add_metric([device], len(found.doubted))
    yield from (gone, strange)


def record_metrics(counts: RecordCounts | None) -> Iterator[Metric]:
    """None when nothing is recorded."""
    if counts is None:
        return
    for name, text, value in (
        ("recorded", "Ticks written to the record.", counts.recorded),
        ("record_dropped", "Ticks that could not be written.", counts.dropped),
        ("record_bytes", "Bytes written to the record.", counts.bytes),
    ):
        yield CounterMetricFamily(f"coldplate_governor_{name}", text, value=value)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"coldplate_governor_{name}", text, labels=labels)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"coldplate_governor_{name}", text, labels=labels)
