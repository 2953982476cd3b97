"""What a worker's steps cost of late."""

from collections import deque
from dataclasses import dataclass

from coldplate.clock import Clock
from coldplate.internal.v1 import engine_pb2

WINDOW_S = 1.0
_US = 1e-6


@dataclass(slots=True)
class WorkerTotals:
    """Counts since the connection was made, in tokens; ``preemptions`` are streams."""

    prefill_tokens: int = 0
    cached_tokens: int = 0
    offloaded_tokens: int = 0
    preemptions: int = 0
    preempted_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    def add(self, stats: engine_pb2.StepStats) -> None:
        """Count one step; most bring nothing but tokens."""
        self.prefill_tokens += stats.prefill_tokens
        self.cached_tokens += stats.cached_tokens
        self.offloaded_tokens += stats.offloaded_tokens
        self.preemptions += stats.preempted
        self.preempted_tokens += stats.preempted_tokens
        self.draft_tokens += stats.draft_tokens
        self.accepted_tokens += stats.accepted_tokens


@dataclass(frozen=True, slots=True)
class StepMeans:
    """Means over the last second, in seconds per step; rates per second; ``busy_share`` of it was computing."""

    steps: int = 0
    schedule: float = 0.0
    host_prep: float = 0.0
    copy: float = 0.0
    device: float = 0.0
    sample: float = 0.0
    idle: float = 0.0
    paced: float = 0.0
    tokens_per_second: float = 0.0
    prefill_tokens_per_second: float = 0.0
    busy_share: float = 0.0


_BUSY_PARTS = ("schedule", "host_prep", "copy", "device", "sample")
_PARTS = (*_BUSY_PARTS, "idle", "paced")


class StepLog:
    """The steps of the last second, and totals since the connection was made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._recent: deque[tuple[float, engine_pb2.StepStats, int]] = deque()
        self.latest = engine_pb2.StepStats()
        self.totals = WorkerTotals()
        self.paced_total_s = 0.0
        self.prefill_tokens_per_s: float | None = None

    def add(self, stats: engine_pb2.StepStats, tokens: int) -> None:
        """Take in one step message that brought ``tokens`` new tokens."""
        self.latest = stats
        self.totals.add(stats)
        self.paced_total_s += stats.paced_us * _US
        now = self._clock.now()
        if stats.prefill_tokens or stats.decode_tokens:
            self._recent.append((now, stats, tokens))
        self._forget(now)
        if stats.prefill_tokens >= 16 and stats.device_us:
            rate = stats.prefill_tokens / (stats.device_us * _US)
            old = self.prefill_tokens_per_s
            self.prefill_tokens_per_s = rate if old is None else 0.8 * old + 0.2 * rate

    def means(self) -> StepMeans:
        self._forget(self._clock.now())
        count = len(self._recent)
        if count == 0:
            return StepMeans()
        sums = {
            part: sum(getattr(stats, f"{part}_us") for _, stats, _ in self._recent) * _US / count for part in _PARTS
        }
        busy_s = count * sum(sums[part] for part in _BUSY_PARTS)
        return StepMeans(
            steps=count,
            tokens_per_second=sum(tokens for *_, tokens in self._recent) / WINDOW_S,
            prefill_tokens_per_second=sum(stats.prefill_tokens for _, stats, _ in self._recent) / WINDOW_S,
            busy_share=min(1.0, busy_s / WINDOW_S),
            **sums,
        )

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - WINDOW_S:
            self._recent.popleft()
