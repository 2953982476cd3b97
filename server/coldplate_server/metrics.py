"""What Prometheus scrapes: names after vLLM's where the meaning is the same."""

from collections.abc import Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from coldplate import __version__
from coldplate.durations import to_seconds
from coldplate.v1 import device_pb2
from coldplate_server.result import Timings, Usage

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 640, 2560)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144)
_CLASSES = {1: "low", 2: "normal", 3: "high"}
_STEP_PARTS = ("schedule", "host_prep", "copy", "device", "sample", "idle", "paced")


class StepCounts(Protocol):
    """As a worker's step message has them."""

    @property
    def prefill_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def offloaded_tokens(self) -> int: ...
    @property
    def preempted(self) -> int: ...
    @property
    def draft_tokens(self) -> int: ...
    @property
    def accepted_tokens(self) -> int: ...


class Metrics:
    """Owns the registry. Counters are moved by what happens; gauges follow ``observe``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests ended, by outcome.", "model", "outcome")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of completed requests.", "model")
        self._generation_tokens = self._counter("generation_tokens", "Tokens made by engines.", "model")
        self._prefix_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the cache.", "model")
        self._prefix_hits = self._counter("prefix_cache_hits", "Prompt tokens that the cache held.", "model")
        self._offload_hits = self._counter("prefix_cache_offload_hits", "Those of them from host memory.", "model")
        self._preemptions = self._counter("num_preemptions", "Streams put back to be computed again.", "model")
        self._drafts = self._counter("spec_decode_num_draft_tokens", "Tokens guessed ahead.", "model")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Those of them that held.", "model")
        self._throttled = self._counter("request_throttled_seconds", "Time requests ran under pacing.", "model")
        self._queue_time = self._histogram("request_queue_time_seconds", "From arrival to hand-over to an engine.")
        self._first_token = self._histogram("time_to_first_token_seconds", "From arrival to the first token.")
        self._per_token = self._histogram("time_per_output_token_seconds", "Mean time between tokens of a request.")
        self._e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the end.")
        self._output_tokens = self._histogram("request_generation_tokens", "Tokens of a completed request.", _TOKENS)
        self._running = self._gauge("num_requests_running", "Streams in engines.")
        self._waiting = self._gauge("num_requests_waiting", "Streams in the queue.")
        self._refused = self._counter(
            "admission_refused",
            "Requests refused for load: on arrival, or while they waited.",
            "model",
            "class",
            "when",
        )
        self._class_waiting = self._gauge("queue_requests", "Streams in the queue.", "model", "class")
        self._class_tokens = self._gauge("queue_tokens", "Tokens that wait, prompt and answer.", "model", "class")
        self._class_limit = self._gauge(
            "in_flight_limit_tokens", "Tokens that may wait or run; absent where no limit is needed.", "model", "class"
        )
        self._class_wait = self._gauge("queue_wait_seconds", "Wait in the queue of late.", "model", "class")
        self._class_target = self._gauge("queue_wait_target_seconds", "What admission steers for.", "model", "class")
        self._governed = self._gauge("governed", "1 while a governor holds the lease.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV cache in use, 0 to 1.", "device", "worker")
        self._kv_cached = self._gauge(
            "kv_cache_prefix_perc", "KV cache that holds a reusable prefix and no stream, 0 to 1.", "device", "worker"
        )
        self._streams = self._gauge("device_streams_running", "Streams in this worker.", "device", "worker")
        self._rate = self._gauge("device_tokens_per_second", "Tokens made in the last second.", "device", "worker")
        self._restarts = self._gauge("worker_restarts", "Times the worker was started again.", "device", "worker")
        self._up = self._gauge("worker_up", "1 while the worker serves.", "device", "worker")
        self._step_time = self._gauge(
            "step_seconds", "Mean time per step in the last second.", "device", "worker", "part"
        )
        self._limit = self._gauge("limit", "Limit in force; absent where there is none.", "device", "limit")
        self._temperature = self._gauge(
            "device_temperature_celsius", "As the governor sees it; absent if unknown.", "device"
        )
        self._refused_seen: dict[tuple[str, str, str], int] = {}
        self._gauge("build_info", "Version of the server.", "version").labels(__version__).set(1)

    def tokens_made(self, model: str, count: int) -> None:
        if count:
            self._generation_tokens.labels(model).inc(count)

    def step_taken(self, model: str, step: StepCounts) -> None:
        """What an engine's step did beside making tokens; mostly nothing."""
        for counter, count in (
            (self._prefix_queries, step.prefill_tokens + step.cached_tokens),
            (self._prefix_hits, step.cached_tokens),
            (self._offload_hits, step.offloaded_tokens),
            (self._preemptions, step.preempted),
            (self._drafts, step.draft_tokens),
            (self._accepted, step.accepted_tokens),
        ):
            if count:
                counter.labels(model).inc(count)

    def request_ended(self, model: str, outcome: str) -> None:
        """``outcome`` is one of rpc/status.py's few words."""
        self._requests.labels(model, outcome).inc()

    def request_completed(self, model: str, usage: Usage, timings: Timings) -> None:
        self._prompt_tokens.labels(model).inc(usage.prompt_tokens)
        self._output_tokens.labels(model).observe(usage.completion_tokens)
        self._queue_time.labels(model).observe(timings.queued_s)
        self._e2e.labels(model).observe(timings.total_s)
        self._throttled.labels(model).inc(timings.throttled_s)
        if usage.completion_tokens > 0:
            self._first_token.labels(model).observe(timings.first_token_s)
        if usage.completion_tokens > 1:
            self._per_token.labels(model).observe(timings.per_token_s)

    def observe(self, status: device_pb2.ServiceStatus) -> None:
        """Set the gauges from the state of the service."""
        self._running.set(status.running)
        self._waiting.set(status.queued)
        self._governed.set(status.governor.state == device_pb2.GOVERNOR_STATE_GOVERNED)
        self._limit.clear()
        self._temperature.clear()
        for device in status.devices:
            self._observe_device(device)

    def observe_queue(self, load: device_pb2.Load) -> None:
        """Set the gauges of the queue, class by class."""
        self._class_limit.clear()
        for entry in load.classes:
            labels = (entry.model, _CLASSES[entry.priority])
            self._class_waiting.labels(*labels).set(entry.waiting)
            self._class_tokens.labels(*labels).set(entry.waiting_tokens)
            self._class_wait.labels(*labels).set(to_seconds(entry.queue_wait))
            self._class_target.labels(*labels).set(to_seconds(entry.wait_target))
            if entry.HasField("in_flight_limit_tokens"):
                self._class_limit.labels(*labels).set(entry.in_flight_limit_tokens)
            for when, count in (("arrival", entry.refused), ("waiting", entry.shed)):
                seen = self._refused_seen.get((*labels, when), 0)
                self._refused.labels(*labels, when).inc(count - seen)
                self._refused_seen[*labels, when] = count

    def _observe_device(self, status: device_pb2.DeviceStatus) -> None:
        labels = (status.device, status.worker)
        total = status.kv_tokens_total
        self._kv_usage.labels(*labels).set(status.kv_tokens_used / total if total else 0)
        self._kv_cached.labels(*labels).set(status.kv_tokens_cached / total if total else 0)
        self._streams.labels(*labels).set(status.running)
        self._rate.labels(*labels).set(status.tokens_per_second)
        self._restarts.labels(*labels).set(status.restarts)
        self._up.labels(*labels).set(status.kv_tokens_total > 0)
        for part in _STEP_PARTS:
            self._step_time.labels(*labels, part).set(getattr(status.step_times, part))
        for field, value in status.limits.ListFields():
            self._limit.labels(status.device, field.name).set(value)
        if status.readings.HasField("temperature_celsius"):
            self._temperature.labels(status.device).set(status.readings.temperature_celsius)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="coldplate", registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace="coldplate", registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        return Histogram(name, text, ["model"], namespace="coldplate", registry=self.registry, buckets=buckets)
