"""The governor's own Prometheus endpoint. Chips use npu-exporter's names, so that its dashboards fit.

Built from the last round when it is scraped: what was not measured has no sample, rather than a 0.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coldplate_governor.explain.metrics import account_metrics, record_metrics, sensor_metrics
from coldplate_governor.law import MODES
from coldplate_governor.loop import GovernorSnapshot

_MEGABYTE = 2**20
# npu-exporter's name, the quantity, what a value is divided by, help
_NPU = (
    ("temperature", "temperature_celsius", 1, "Temperature in degrees Celsius."),
    (
        "hbm_temperature",
        "memory_temperature_celsius",
        1,
        "Temperature of the high-bandwidth memory in degrees Celsius.",
    ),
    ("utilization", "utilization_percent", 1, "AI core use in percent."),
    ("used_memory", "memory_used_bytes", _MEGABYTE, "Used memory in MB."),
    ("total_memory", "memory_total_bytes", _MEGABYTE, "Total memory in MB."),
    ("aicore_current_freq", "frequency_mhz", 1, "AI core clock in MHz."),
)
_CPU = (
    ("temperature_celsius", "Temperature of the device."),
    ("utilization_percent", "Use of the device."),
    ("memory_used_bytes", "Memory in use, without reclaimable cache."),
    ("memory_total_bytes", "Memory there is, or the container's limit."),
    ("memory_pressure_percent", "Share of the last 10 s in which some task waited for memory."),
    ("cpu_pressure_percent", "Share of the last 10 s in which some task waited for the processor."),
)


class GovernorCollector(Collector):
    """Turns the snapshot of the last round into metrics."""

    def __init__(self, snapshot: GovernorSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        snapshot = self._snapshot
        yield _counter("coldplate_governor_decisions", "Decisions made.", snapshot.decisions)
        yield _counter("coldplate_governor_applied", "Rounds the server accepted.", snapshot.applied)
        if snapshot.period_s is not None:
            yield GaugeMetricFamily("coldplate_governor_loop_period_seconds", "Last period.", value=snapshot.period_s)
        restarts = CounterMetricFamily("coldplate_governor_sensor_restarts", "Agents replaced.", labels=["device"])
        for device, count in snapshot.agent_restarts.items():
            restarts.add_metric([device], count)
        yield restarts
        clocks = GaugeMetricFamily(
            "coldplate_governor_clock_share", "Share of the rated clock a frequency lever leaves.", labels=["device"]
        )
        for device, share in snapshot.clock_shares.items():
            clocks.add_metric([device], share)
        yield clocks
        yield from self._decisions()
        directives = snapshot.directives
        yield from account_metrics({item.device: item.account for item in directives if item.account})
        yield from sensor_metrics({item.device: item.readings for item in directives})
        yield from record_metrics(snapshot.record)
        yield from self._readings()

    def _decisions(self) -> Iterator[Metric]:
        duty = GaugeMetricFamily(
            "coldplate_governor_duty", "Share of wall time a device may compute.", labels=["device"]
        )
        mode = GaugeMetricFamily("coldplate_governor_mode", "1 for the mode a device is in.", labels=["device", "mode"])
        unusable = GaugeMetricFamily(
            "coldplate_governor_sensor_unusable", "1 for a sensor that cannot work here.", labels=["device", "sensor"]
        )
        age = GaugeMetricFamily(
            "coldplate_governor_sensor_age_seconds", "Age of the newest reading.", labels=["device"]
        )
        for directive in self._snapshot.directives:
            duty.add_metric([directive.device], directive.decision.duty)
            for name in MODES:
                mode.add_metric([directive.device, name], float(directive.decision.mode == name))
            if directive.readings.age_s is not None:
                age.add_metric([directive.device], directive.readings.age_s)
            for sensor in directive.readings.unusable:
                unusable.add_metric([directive.device, sensor], 1.0)
        yield from (duty, mode, age, unusable)

    def _readings(self) -> Iterator[Metric]:
        directives = self._snapshot.directives
        chips = [(d.device.partition(":")[2], d.readings.values) for d in directives if d.device.startswith("npu:")]
        for name, quantity, unit, help_text in _NPU:
            gauge = GaugeMetricFamily(f"npu_chip_info_{name}", help_text, labels=["id"])
            for index, values in chips:
                if quantity in values:
                    gauge.add_metric([index], values[quantity] / unit)
            yield gauge
        power = GaugeMetricFamily("npu_chip_info_power", "Power in watts; of the whole card on a 310P.", labels=["id"])
        health = GaugeMetricFamily("npu_chip_info_health_status", "1 well, 0 not.", labels=["id"])
        for directive in directives:
            kind, _, index = directive.device.partition(":")
            values, words = directive.readings.values, directive.readings.words
            if kind == "npu" and (watts := values.get("power_watts", values.get("card_power_watts"))) is not None:
                power.add_metric([index], watts)
            if kind == "npu" and "health" in words:
                health.add_metric([index], float(words["health"] == "ok"))
        yield from (power, health)
        for quantity, help_text in _CPU:
            gauge = GaugeMetricFamily(f"coldplate_device_{quantity}", help_text, labels=["device"])
            for directive in directives:
                if quantity in directive.readings.values:
                    gauge.add_metric([directive.device], directive.readings.values[quantity])
            yield gauge


def serve_metrics(listen: str, snapshot: GovernorSnapshot) -> tuple[Any, Any]:
    """Serve at ``HOST:PORT`` from a thread; returns the HTTP server and the thread. Raises OSError when it is taken."""
    host, _, port = listen.rpartition(":")
    registry = CollectorRegistry()
    registry.register(GovernorCollector(snapshot))
    return start_http_server(int(port), host.strip("[]"), registry)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_text, value=value)
