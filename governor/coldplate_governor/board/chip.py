"""One chip of the board: its load, what it was told to do, and the faults put into it."""

import math
from dataclasses import dataclass, field
from typing import Any

from coldplate_governor.board.alarms import HBM_HOT, HBM_HOT_CELSIUS, SOC_HOT, alarm_of, health_word
from coldplate_governor.board.kinds import ChipKind
from coldplate_governor.twin.plant import Card, ChipState

MAX_BACKLOG_S = 10.0
_UTILIZATION_WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Holding:
    """A process that uses the chip, and the device memory it holds."""

    pid: int
    name: str
    held_bytes: int


@dataclass(slots=True)
class Faults:
    """What was done to a chip. Times are the board's."""

    lost: bool = False
    oom_steps: int = 0
    memory_limit_bytes: int | None = None
    cap_share: float = 1.0
    alarms: list[int] = field(default_factory=list)
    lie_celsius: float | None = None
    lie_until_s: float = math.inf
    frozen: dict[str, Any] | None = None
    frozen_until_s: float = math.inf
    hang_until_s: float = -math.inf
    tool_code: int | None = None
    refuses_levels: bool = False
    ignores_levels: bool = False


@dataclass(slots=True)
class Chip:
    """``npu_id`` and ``chip_id`` are the card's id and the chip's place on it; ``index`` is the chip's on the board."""

    kind: ChipKind
    card: Card
    profile: str
    index: int
    heatsink: int
    npu_id: int
    chip_id: int
    level: int = 0
    backlog_s: float = 0.0
    intensity: float = 0.0
    utilization: float = 0.0
    steps: int = 0
    tokens: int = 0
    holdings: dict[int, Holding] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)

    @property
    def state(self) -> ChipState:
        return self.card.chips[self.chip_id]

    @property
    def gone(self) -> bool:
        return self.faults.lost or not self.state.powered

    @property
    def asked_share(self) -> float:
        """Of the rated clock, by work level and outside cap, before the firmware."""
        level = self.kind.levels[self.level].mhz / self.kind.rated_mhz if self.kind.levels else 1.0
        return min(level, self.faults.cap_share)

    @property
    def clock_share(self) -> float:
        return min(self.asked_share, self.state.clock_share)

    @property
    def load(self) -> float:
        """For the plant, which takes the firmware's share of the clock off by itself."""
        return self.utilization * self.intensity * self.clock_share / self.state.clock_share

    def live(self, seconds: float) -> None:
        """Work off ``seconds`` of what was posted."""
        busy_s = 0.0 if self.gone else min(self.backlog_s, seconds)
        self.backlog_s -= busy_s
        self.utilization += (busy_s / seconds - self.utilization) * min(1.0, seconds / _UTILIZATION_WINDOW_S)

    def work(self, busy_s: float, tokens: int, intensity: float) -> None:
        """Post a step that computes for ``busy_s`` at the chip's present clock."""
        total = self.backlog_s + busy_s
        if total > 0:
            self.intensity = (self.backlog_s * self.intensity + busy_s * intensity) / total
        self.backlog_s = min(total, MAX_BACKLOG_S)
        self.steps += 1
        self.tokens += tokens

    @property
    def memory_used_bytes(self) -> int:
        """By the chip itself, or by whoever left its worker so little, and by its workers."""
        limit, total = self.faults.memory_limit_bytes, self.kind.memory_bytes
        others = self.kind.memory_idle_bytes if limit is None else total - limit
        return min(total, max(others, self.kind.memory_idle_bytes) + sum(h.held_bytes for h in self.holdings.values()))

    def sensors(self, now_s: float) -> dict[str, Any]:
        """What its sensors say; quantities it has no sensor for are left out. Every value is simulated."""
        if self.faults.frozen is not None and now_s < self.faults.frozen_until_s:
            return self.faults.frozen
        kind, state = self.kind, self.state
        said: dict[str, Any] = {
            "temperature_celsius": float(round(state.junction_celsius)),
            "board_temperature_celsius": float(round(self.card.sink_celsius)),
            "utilization_percent": round(100 * self.utilization, 1),
            "memory_used_bytes": self.memory_used_bytes,
            "memory_total_bytes": kind.memory_bytes,
            "throttle_cause": self._throttle_cause(),
        }
        if kind.power == "chip":
            said["power_watts"] = round(state.watts, 1)
        elif kind.power == "card":
            said["card_power_watts"] = round(self.card.watts, 1)
        if kind.shows_clock:
            said |= {"frequency_mhz": kind.rated_mhz * self.clock_share, "rated_frequency_mhz": kind.rated_mhz}
        if kind.shows_thresholds:
            said["firmware_limit_celsius"] = self.card.cliff.steps[0][0]
            said["reset_celsius"] = self.card.cliff.power_off_celsius
        if kind.has_hbm:
            said["memory_temperature_celsius"] = float(round(self._hbm_celsius()))
        if kind.levels:
            said["work_level"] = kind.levels[self.level].name
        codes = self._alarms()
        said["health"] = health_word(codes, kind.health)
        said["error_codes"] = [f"{code:08X}" for code in codes]
        said["error_texts"] = [alarm_of(code).text for code in codes]
        if self.faults.lie_celsius is not None and now_s < self.faults.lie_until_s:
            said["temperature_celsius"] = self.faults.lie_celsius
        return said

    def _throttle_cause(self) -> str:
        causes = ["thermal"] if self.state.clock_share < 1 else []
        causes += ["power-cap"] if self.faults.cap_share < 1 else []
        return "+".join(causes) or "none"

    def _hbm_celsius(self) -> float:
        """Between junction and heatsink, in the middle: an estimate."""
        return (self.state.junction_celsius + self.card.sink_celsius) / 2

    def _alarms(self) -> list[int]:
        codes = list(self.faults.alarms)
        if self.state.clock_share < 1:
            codes.append(SOC_HOT)
        if self.kind.has_hbm and self._hbm_celsius() >= HBM_HOT_CELSIUS:
            codes.append(HBM_HOT)
        return list(dict.fromkeys(codes))
