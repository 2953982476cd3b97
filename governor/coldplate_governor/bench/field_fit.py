"""The first field report as a model: what it measured, and a twin of its board fitted to it without its fan row.

The report: an Atlas 200I board without a fan, a 4-bit Qwen3. What its numbers say before any model:

* P99 x tokens/s / streams is 69 to 71 tokens in all three rows. So a request has about 69 tokens, requests are alike,
  and within a row the clock was steady: no tail comes from a clock that is halved for a part of the time.
* Tokens/s of one stream fall with the temperature and not with the company: 3.20 at 78 °C, 2.90 at 82, 1.78 at 86. So
  decoding together costs no time (one stream leaves the chip mostly idle), and the clock falls with the heat.
* The clock at 86 °C is 0.55 of that at 78 °C: the report's "halved".
* With a fan P99 is 14.2 s. One stream at 78 °C took 21.6 s, and four cannot be faster than one. So at 78 °C the chip
  was already slowed to two thirds, below the 86 °C at which the halving was seen: only a slope explains the fan row, no
  single step at 86 °C does (without a step to one half 38.9 s would be 19.5 s).

Free parameters, all fitted to the rows without a fan:
    tokens of a request (1); speed of a stream at 82 °C and its slope with temperature (2); temperature at no tokens and
    degrees for each token/s (2); requests that fit into memory (1, from the 42 %).
Six numbers for ten reported ones. Assumed, from the plants of the benchmark and not fitted: air 30 °C, resistances and
capacities of the edge module, and that the slope goes on below 78 °C. Nothing in the other rows tells how strong the
fan was. So the fan row is predicted twice: P99 with a fan just strong enough for the reported 72 °C, and both numbers
with a fan that cuts the resistance from heatsink to air to 0.4. The form of the slope and the 0.4 were chosen by
someone who knew the fan row; no number was fitted to it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from coldplate_governor.twin.plant import CardModel

AIR_CELSIUS = 30.0
FAN_SINK_SHARE = 0.4
FULL_CLOCK_CELSIUS = 60.0  # below every row; where the slope begins the report does not tell
MEMORY_SPREAD = 0.2  # requests differ by so much in memory
_EDGE = CardModel("200I board", 1, 0.0, 0.0, 0.6, 12.0, 2.0, 250.0, leakage_per_celsius=0.0)
_WAVES = 4000


@dataclass(frozen=True, slots=True)
class ReportedRow:
    """One row of the report; None: not told."""

    streams: int
    tokens_per_s: float | None
    p99_s: float
    celsius: float


ROWS = (ReportedRow(1, 3.2, 21.6, 78.0), ReportedRow(2, 5.8, 24.3, 82.0), ReportedRow(4, 7.1, 38.9, 86.0))
FAN_ROW = ReportedRow(4, None, 14.2, 72.0)
FAILED_AT_8 = 0.42
HALVED_CELSIUS = 86.0
HALVED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class FieldModel:
    """The fitted board. A stream's speed is ``full_tokens_per_s`` x ``clock(junction)``."""

    request_tokens: float
    full_tokens_per_s: float
    slope_per_celsius: float
    idle_celsius: float
    celsius_per_token_per_s: float
    memory_requests: float

    def clock(self, celsius: float) -> float:
        """Share of the full clock the firmware leaves at a temperature."""
        return math.exp(-self.slope_per_celsius * max(0.0, celsius - FULL_CLOCK_CELSIUS))

    @property
    def joules_per_token(self) -> float:
        return self.celsius_per_token_per_s / (_EDGE.junction_resistance + _EDGE.sink_resistance)

    def card(self, streams: int, sink_share: float = 1.0) -> CardModel:
        """The board with ``streams`` decoding as its full load; ``sink_share`` below 1 is a fan."""
        idle = (self.idle_celsius - AIR_CELSIUS) / (_EDGE.junction_resistance + _EDGE.sink_resistance)
        return CardModel(
            _EDGE.name,
            1,
            idle,
            idle + self.joules_per_token * self.full_tokens_per_s * streams,
            _EDGE.junction_resistance,
            _EDGE.junction_capacity,
            _EDGE.sink_resistance * sink_share,
            _EDGE.sink_capacity,
            leakage_per_celsius=0.0,
        )

    def fan_for(self, streams: int, celsius: float) -> float:
        """The ``sink_share`` of a fan that keeps ``streams`` at a temperature."""
        card = self.card(streams)
        watts = card.idle_watts + (card.max_watts - card.idle_watts) * self.clock(celsius)
        return ((celsius - AIR_CELSIUS) / watts - card.junction_resistance) / card.sink_resistance


def fit(rows: Sequence[ReportedRow] = ROWS, failed_at_8: float = FAILED_AT_8) -> FieldModel:
    """Least squares, in closed form but for the memory, on rows that tell their tokens per second."""
    told = [(row, row.tokens_per_s) for row in rows if row.tokens_per_s is not None]
    tokens = math.exp(_mean([math.log(row.p99_s * rate / row.streams) for row, rate in told]))
    # Each row tells a stream's speed twice: by its throughput and by its latency.
    speeds = [(row.celsius, math.log(rate / row.streams)) for row, rate in told]
    speeds += [(row.celsius, math.log(tokens / row.p99_s)) for row, _ in told]
    slope, level = _line(speeds)
    degrees, idle = _line([(rate, row.celsius) for row, rate in told])
    full = math.exp(level + slope * FULL_CLOCK_CELSIUS)
    return FieldModel(tokens, full, -slope, idle, degrees, _memory(failed_at_8))


def request_sizes(rng: Random, count: int) -> list[float]:
    """Memory of requests, in mean requests."""
    return [rng.uniform(1 - MEMORY_SPREAD, 1 + MEMORY_SPREAD) for _ in range(count)]


def that_fit(sizes: Sequence[float], memory: float) -> int:
    """How many of a wave of requests find memory; one that does not leaves the rest for those after it."""
    left, count = memory, 0
    for size in sizes:
        if size <= left:
            left -= size
            count += 1
    return count


def _memory(failed_at_8: float) -> float:
    """Requests' worth of usable memory with which that share of a wave of eight fails, by bisection."""
    rng = Random("field report")
    waves = [request_sizes(rng, 8) for _ in range(_WAVES)]
    low, high = 1.0, 8 * (1 + MEMORY_SPREAD)
    for _ in range(40):
        middle = (low + high) / 2
        failed = 1 - sum(that_fit(wave, middle) for wave in waves) / (8 * _WAVES)
        low, high = (middle, high) if failed > failed_at_8 else (low, middle)
    return (low + high) / 2


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and value at 0 of the least-squares line."""
    mean_x, mean_y = _mean([x for x, _ in points]), _mean([y for _, y in points])
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return slope, mean_y - slope * mean_x


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
