"""What is on the simulated board: cards, their chips, and the faults put into them.

Time is passed in; nothing here reads a clock or knows of sockets. All it reports is simulated and says so.
"""

from dataclasses import dataclass, field
from typing import Any

from coldplate_governor.board.chip import Chip, Holding
from coldplate_governor.board.kinds import KINDS, ChipKind, cards_of
from coldplate_governor.board.pokes import POKES, BoardError
from coldplate_governor.twin.plant import Card, step_intensity

_STEP_S = 0.1


class ChipLostError(BoardError):
    """The chip does not answer: it was lost, or switched itself off."""


@dataclass(slots=True)
class Board:
    """``count`` chips of a kind. Chips of one card share its heatsink; an odd last 310P has a card of its own."""

    count: int
    ambient_celsius: float = 35.0
    start_celsius: float | None = None
    chip: str = "310p"
    _now_s: float | None = None
    _cards: list[Card] = field(default_factory=list)
    _chips: list[Chip] = field(default_factory=list)

    def __post_init__(self) -> None:
        kind = self.kind
        for heatsink, (model, profile) in enumerate(cards_of(self.chip, self.count)):
            card = Card(model, self.ambient_celsius, self.start_celsius, kind.cliff)
            npu_id = kind.npu_ids[0] + heatsink * kind.npu_ids[1]
            self._cards.append(card)
            for place in range(min(model.chips, self.count - len(self._chips))):
                self._chips.append(Chip(kind, card, profile, len(self._chips), heatsink, npu_id, place))

    @property
    def kind(self) -> ChipKind:
        return KINDS[self.chip]

    def advance(self, now_s: float) -> None:
        """Let the board live until ``now_s``. Time that went back counts as none."""
        elapsed = 0.0 if self._now_s is None else max(0.0, now_s - self._now_s)
        self._now_s = now_s if self._now_s is None else max(self._now_s, now_s)
        while elapsed > 0:
            dt = min(elapsed, _STEP_S)
            loads = [[0.0] * card.model.chips for card in self._cards]
            for chip in self._chips:
                chip.live(dt)
                loads[chip.heatsink][chip.chip_id] = chip.load
            for card, load in zip(self._cards, loads, strict=True):
                card.step(dt, load)
            elapsed -= dt

    def post_step(
        self, chip_index: int, busy_s: float, tokens: int, holder: int | None = None, holding: Holding | None = None
    ) -> dict[str, Any]:
        """Account one step of a worker; returns slowdown (at least 1), memory limit, fault ("oom", "lost", None).

        ``busy_s`` is at the rated clock. ``holding`` is what the worker with the number ``holder`` has on the chip.
        """
        chip = self._chip(chip_index)
        if chip.gone:
            return {"slowdown": 1.0, "memory_limit_bytes": chip.faults.memory_limit_bytes, "fault": "lost"}
        if holder is not None and holding is not None:
            chip.holdings[holder] = holding
        slowdown = 1 / chip.clock_share
        chip.work(busy_s * slowdown, tokens, step_intensity(tokens))
        fault = None
        if chip.faults.oom_steps:
            chip.faults.oom_steps -= 1
            fault = "oom"
        return {"slowdown": slowdown, "memory_limit_bytes": chip.faults.memory_limit_bytes, "fault": fault}

    def forget(self, holder: int) -> None:
        """A worker has gone, and what it held with it."""
        for chip in self._chips:
            chip.holdings.pop(holder, None)

    def set_level(self, chip_index: int, level: int) -> None:
        """Set a 310B's work level. Raises BoardError where the chip has none, not that one, or refuses."""
        chip = self._live_chip(chip_index)
        levels = chip.kind.levels
        if not levels or chip.faults.refuses_levels:
            raise BoardError(f"chip {chip_index} does not take a work level")
        if not 0 <= level < len(levels):
            raise BoardError(f"chip {chip_index} has no work level {level}: expected 0 to {len(levels) - 1}")
        if not chip.faults.ignores_levels:
            chip.level = level

    def hangs_for_s(self, chip_index: int) -> float:
        """Seconds of board time until the chip's sensors answer again."""
        return max(0.0, self._chip(chip_index).faults.hang_until_s - self._time())

    def read(self, chip_index: int) -> dict[str, Any]:
        """What the chip's sensors say, and what it is. Raises ChipLostError when it does not answer."""
        chip = self._live_chip(chip_index)
        kind = chip.kind
        return {
            "simulated": True,
            "chip": f"{kind.chip_name} (simulated)",
            "card": chip.card.model.name,
            **chip.sensors(self._time()),
            "bandwidth_gb_s": kind.bandwidth_gb_s,
            "fp16_tflops": kind.fp16_tflops,
            "int8_tops": kind.int8_tops,
            "memory_idle_bytes": kind.memory_idle_bytes,
            "bfloat16": kind.has_bfloat16,
            "hugepages_used": kind.hugepages[0],
            "hugepages_total": kind.hugepages[1],
            "processes": [[one.pid, one.name, one.held_bytes] for one in chip.holdings.values()],
            "firmware_throttle_events": chip.state.cliff_events,
            "steps": chip.steps,
            "tokens": chip.tokens,
        }

    def describe(self) -> dict[str, Any]:
        """The board as a whole. ``heatsinks`` lists the chips on each; ``tool_code`` is what npu-smi fails with."""
        kind = self.kind
        return {
            "simulated": True,
            "kind": kind.name,
            "chips": self.count,
            "chip_name": kind.chip_name,
            "layout": kind.layout,
            "on_pcie": kind.on_pcie,
            "power": kind.power,
            "levels": [level.name for level in kind.levels],
            "cards": [card.model.name for card in self._cards],
            "profiles": [chip.profile for chip in self._chips],
            "heatsinks": [
                [chip.index for chip in self._chips if chip.heatsink == number] for number in range(len(self._cards))
            ],
            "npu_ids": [[chip.npu_id, chip.chip_id] for chip in self._chips],
            "tool_code": next((c.faults.tool_code for c in self._chips if c.faults.tool_code is not None), None),
            "ambient_celsius": self.ambient_celsius,
            "pokes": {name: list(poke.values) for name, poke in POKES.items()},
        }

    def poke(self, what: str, chip_index: int | None, values: dict[str, Any]) -> None:
        """Do ``what``, one of ``POKES``, to a chip, or to all of them when ``chip_index`` is None."""
        poke = POKES.get(what)
        if poke is None:
            raise BoardError(f"unknown poke {what[:40]!r}: expected one of {', '.join(POKES)}")
        poke.check(what, values)
        for chip in [self._chip(chip_index)] if chip_index is not None else self._chips:
            poke.act(chip, values, self._time())
        if what == "ambient":
            self.ambient_celsius = values["celsius"]

    def _chip(self, index: int) -> Chip:
        if not 0 <= index < self.count:
            raise BoardError(f"no chip {index}: this board has {self.count}, from 0")
        return self._chips[index]

    def _live_chip(self, index: int) -> Chip:
        chip = self._chip(index)
        if chip.gone:
            why = "lost" if chip.faults.lost else "over temperature, power off"
            raise ChipLostError(f"chip {index} does not answer: {why}")
        return chip

    def _time(self) -> float:
        return self._now_s or 0.0
