"""What is on the simulated board: cards, their chips, and the faults put into them.

Time is passed in; nothing here reads a clock or knows of sockets. All it reports is simulated and says so.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coldplate_governor.twin.plant import DUO_CARD, SINGLE_CARD, Card, ChipState, step_intensity

RATED_MHZ = 1080.0  # AI core clock of a 310P, from `npu-smi info -t common`
MEMORY_TOTAL_BYTES = 44280 * 2**20  # what npu-smi shows per chip of a 300I Duo with 96 GB
MEMORY_IDLE_BYTES = 1529 * 2**20
_MAX_BACKLOG_S = 10.0
_UTILIZATION_WINDOW_S = 1.0


class BoardError(ValueError):
    """A request the board cannot serve; the text says why."""


class ChipLostError(BoardError):
    """The chip does not answer: it was lost, or switched itself off."""


@dataclass(slots=True)
class _Chip:
    card: Card
    index_on_card: int
    backlog_s: float = 0.0
    intensity: float = 0.0
    utilization: float = 0.0
    steps: int = 0
    tokens: int = 0
    memory_limit_bytes: int | None = None
    oom_steps: int = 0
    lost: bool = False
    lie_celsius: float | None = None
    lie_until_s: float = math.inf
    hang_until_s: float = -math.inf

    @property
    def state(self) -> ChipState:
        return self.card.chips[self.index_on_card]

    @property
    def gone(self) -> bool:
        return self.lost or not self.state.powered


@dataclass(slots=True)
class Board:
    """``count`` chips: pairs share a Duo card and its heatsink, an odd last one has a card of its own."""

    count: int
    ambient_celsius: float = 35.0
    start_celsius: float | None = None
    _now_s: float | None = None
    _cards: list[Card] = field(default_factory=list)
    _chips: list[_Chip] = field(default_factory=list)

    def __post_init__(self) -> None:
        for first in range(0, self.count, 2):
            model = DUO_CARD if first + 1 < self.count else SINGLE_CARD
            card = Card(model, self.ambient_celsius, self.start_celsius)
            self._cards.append(card)
            self._chips += [_Chip(card, index) for index in range(model.chips)]

    def advance(self, now_s: float) -> None:
        """Let the board live until ``now_s``. Time that went back counts as none."""
        elapsed = 0.0 if self._now_s is None else max(0.0, now_s - self._now_s)
        self._now_s = now_s if self._now_s is None else max(self._now_s, now_s)
        while elapsed > 0:
            dt = min(elapsed, 0.1)
            for chip in self._chips:
                busy_s = 0.0 if chip.gone else min(chip.backlog_s, dt)
                chip.backlog_s -= busy_s
                chip.utilization += (busy_s / dt - chip.utilization) * min(1.0, dt / _UTILIZATION_WINDOW_S)
            for card in self._cards:
                loads = [chip.utilization * chip.intensity for chip in self._chips if chip.card is card]
                card.step(dt, loads)
            elapsed -= dt

    def post_step(self, chip_index: int, busy_s: float, tokens: int) -> dict[str, Any]:
        """Account one step of a worker; returns slowdown (at least 1), memory limit, fault ("oom", "lost", None)."""
        chip = self._chip(chip_index)
        if chip.gone:
            return {"slowdown": 1.0, "memory_limit_bytes": chip.memory_limit_bytes, "fault": "lost"}
        slowdown = chip.state.slowdown
        busy_s *= slowdown
        total = chip.backlog_s + busy_s
        if total > 0:
            chip.intensity = (chip.backlog_s * chip.intensity + busy_s * step_intensity(tokens)) / total
        chip.backlog_s = min(total, _MAX_BACKLOG_S)
        chip.steps += 1
        chip.tokens += tokens
        fault = None
        if chip.oom_steps:
            chip.oom_steps -= 1
            fault = "oom"
        return {"slowdown": slowdown, "memory_limit_bytes": chip.memory_limit_bytes, "fault": fault}

    def hangs_for_s(self, chip_index: int) -> float:
        """Seconds of board time until the chip's sensors answer again."""
        return max(0.0, self._chip(chip_index).hang_until_s - self._time())

    def read(self, chip_index: int) -> dict[str, Any]:
        """What the chip's sensors say. ``power_watts`` is the card's: a 310P has no power sensor of its own."""
        chip = self._chip(chip_index)
        if chip.gone:
            raise ChipLostError(
                f"chip {chip_index} does not answer: {'lost' if chip.lost else 'over temperature, power off'}"
            )
        state = chip.state
        lying = chip.lie_celsius is not None and self._time() < chip.lie_until_s
        used = MEMORY_IDLE_BYTES
        if chip.memory_limit_bytes is not None:
            used = max(used, MEMORY_TOTAL_BYTES - chip.memory_limit_bytes)
        return {
            "simulated": True,
            "chip": "310P3 (simulated)",
            "card": chip.card.model.name,
            "temperature_celsius": chip.lie_celsius if lying else float(round(state.junction_celsius)),
            "power_watts": round(chip.card.watts, 1),
            "utilization_percent": round(100 * chip.utilization, 1),
            "memory_used_bytes": used,
            "memory_total_bytes": MEMORY_TOTAL_BYTES,
            "frequency_mhz": RATED_MHZ * state.clock_share,
            "rated_frequency_mhz": RATED_MHZ,
            "firmware_throttle_events": state.cliff_events,
            "steps": chip.steps,
            "tokens": chip.tokens,
        }

    def describe(self) -> dict[str, Any]:
        """The board as a whole."""
        return {
            "simulated": True,
            "chips": self.count,
            "cards": [card.model.name for card in self._cards],
            "ambient_celsius": self.ambient_celsius,
            "pokes": {name: list(poke.values) for name, poke in POKES.items()},
        }

    def poke(self, what: str, chip_index: int | None, values: dict[str, Any]) -> None:
        """Do ``what``, one of ``POKES``, to a chip, or to all of them when ``chip_index`` is None."""
        poke = POKES.get(what)
        if poke is None:
            raise BoardError(f"unknown poke {what[:40]!r}: expected one of {', '.join(POKES)}")
        unknown = sorted(set(values) - set(poke.values))
        if unknown:
            raise BoardError(
                f"poke {what} does not take {unknown[0]!r}: it takes {', '.join(poke.values) or 'nothing'}"
            )
        for name, value in values.items():
            if value is not None:
                low, high = poke.values[name]
                if not (isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high):
                    raise BoardError(f"poke {what}: {name} is {value!r}: expected a number from {low:g} to {high:g}")
        for name in poke.required:
            if values.get(name) is None:
                raise BoardError(f"poke {what} needs {name}")
        for chip in [self._chip(chip_index)] if chip_index is not None else self._chips:
            poke.act(self, chip, values)

    def _chip(self, index: int) -> _Chip:
        if not 0 <= index < self.count:
            raise BoardError(f"no chip {index}: this board has {self.count}, from 0")
        return self._chips[index]

    def _time(self) -> float:
        return self._now_s or 0.0

    def _heat(self, chip: _Chip, values: dict[str, Any]) -> None:
        chip.card.heat(values["celsius"])

    def _ambient(self, chip: _Chip, values: dict[str, Any]) -> None:
        self.ambient_celsius = chip.card.ambient_celsius = values["celsius"]

    def _memory(self, chip: _Chip, values: dict[str, Any]) -> None:
        limit = values.get("bytes")
        chip.memory_limit_bytes = None if limit is None else int(limit)

    def _oom(self, chip: _Chip, values: dict[str, Any]) -> None:
        chip.oom_steps = int(values.get("steps") or 1)

    def _lose(self, chip: _Chip, values: dict[str, Any]) -> None:
        chip.lost, chip.backlog_s = True, 0.0

    def _lie(self, chip: _Chip, values: dict[str, Any]) -> None:
        seconds = values.get("seconds")
        chip.lie_celsius = values["celsius"]
        chip.lie_until_s = math.inf if seconds is None else self._time() + seconds

    def _hang(self, chip: _Chip, values: dict[str, Any]) -> None:
        chip.hang_until_s = self._time() + values["seconds"]

    def _restore(self, chip: _Chip, values: dict[str, Any]) -> None:
        chip.lost, chip.oom_steps, chip.memory_limit_bytes = False, 0, None
        chip.lie_celsius, chip.hang_until_s = None, -math.inf
        chip.card.power_on(chip.index_on_card)


@dataclass(frozen=True, slots=True)
class Poke:
    """Something that can be done to a chip: what it does, and its values with their range."""

    help: str
    act: Callable[[Board, _Chip, dict[str, Any]], None]
    values: dict[str, tuple[float, float]] = field(default_factory=dict)
    required: tuple[str, ...] = ()


_CELSIUS = (-40.0, 150.0)
POKES: dict[str, Poke] = {
    "heat": Poke("Put the chip's card at a temperature.", Board._heat, {"celsius": _CELSIUS}, ("celsius",)),
    "ambient": Poke("Set the air temperature at the card.", Board._ambient, {"celsius": (-40.0, 80.0)}, ("celsius",)),
    "memory": Poke(
        "Leave the worker this much memory; without bytes, all of it.",
        Board._memory,
        {"bytes": (0, MEMORY_TOTAL_BYTES)},
    ),
    "oom": Poke("Let the next steps run out of memory.", Board._oom, {"steps": (1, 1_000_000)}),
    "lose": Poke("Lose the chip: steps and sensors fail until it is restored.", Board._lose),
    "lie": Poke(
        "Let the temperature sensor say this.",
        Board._lie,
        {"celsius": (-1e9, 1e9), "seconds": (0, 86_400)},
        ("celsius",),
    ),
    "hang": Poke("Let the chip's sensors not answer.", Board._hang, {"seconds": (0, 86_400)}, ("seconds",)),
    "restore": Poke("End every fault put into the chip.", Board._restore),
}
