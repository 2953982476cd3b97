"""What can be done to the board: each poke with its values, their range, and what it does."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coldplate_governor.board.chip import Chip, Faults
from coldplate_governor.twin.plant import CardModel

Values = Mapping[str, Any]


class BoardError(ValueError):
    """A request the board cannot serve; the text says why."""


@dataclass(frozen=True, slots=True)
class Poke:
    """Something that can be done to a chip. ``act`` gets the chip, the values and the board's time."""

    help: str
    act: Callable[[Chip, Values, float], None]
    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    def check(self, name: str, values: Values) -> None:
        """Raises BoardError naming what does not fit."""
        unknown = sorted(set(values) - set(self.values))
        if unknown:
            raise BoardError(
                f"poke {name} does not take {unknown[0]!r}: it takes {', '.join(self.values) or 'nothing'}"
            )
        for key, value in values.items():
            low, high = self.values[key]
            if value is not None and not (_is_number(value) and low <= value <= high):
                raise BoardError(f"poke {name}: {key} is {value!r}: expected a number from {low:g} to {high:g}")
        for key in self.required:
            if values.get(key) is None:
                raise BoardError(f"poke {name} needs {key}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _until(values: Values, now_s: float) -> float:
    seconds = values.get("seconds")
    return math.inf if seconds is None else now_s + seconds


def _heat(chip: Chip, values: Values, now_s: float) -> None:
    chip.card.heat(values["celsius"])


def _ambient(chip: Chip, values: Values, now_s: float) -> None:
    chip.card.ambient_celsius = values["celsius"]


def _contact(chip: Chip, values: Values, now_s: float) -> None:
    """Worse contact between chip and heatsink: of every chip of the card, for they share its model."""
    whole = _whole_card(chip)
    chip.card.model = replace(chip.card.model, junction_resistance=whole.junction_resistance * values["factor"])


def _fan(chip: Chip, values: Values, now_s: float) -> None:
    """Less or more air: the resistance of the heatsink goes with the flow to the power of -0.8 (turbulent flow)."""
    whole = _whole_card(chip)
    resistance = whole.sink_resistance * values["share"] ** -0.8
    chip.card.model = replace(chip.card.model, sink_resistance=resistance)


def _whole_card(chip: Chip) -> CardModel:
    return next(model for model, _ in chip.kind.cards if model.name == chip.card.model.name)


def _memory(chip: Chip, values: Values, now_s: float) -> None:
    limit = values.get("bytes")
    if limit is not None and limit > chip.kind.memory_bytes:
        raise BoardError(f"poke memory: bytes is {limit}: the chip has {chip.kind.memory_bytes}")
    chip.faults.memory_limit_bytes = None if limit is None else int(limit)


def _oom(chip: Chip, values: Values, now_s: float) -> None:
    chip.faults.oom_steps = int(values.get("steps") or 1)


def _lose(chip: Chip, values: Values, now_s: float) -> None:
    chip.faults.lost, chip.backlog_s = True, 0.0


def _lie(chip: Chip, values: Values, now_s: float) -> None:
    chip.faults.lie_celsius, chip.faults.lie_until_s = values["celsius"], _until(values, now_s)


def _freeze(chip: Chip, values: Values, now_s: float) -> None:
    chip.faults.frozen = None
    chip.faults.frozen, chip.faults.frozen_until_s = chip.sensors(now_s), _until(values, now_s)


def _hang(chip: Chip, values: Values, now_s: float) -> None:
    chip.faults.hang_until_s = now_s + values["seconds"]


def _alarm(chip: Chip, values: Values, now_s: float) -> None:
    chip.faults.alarms.append(int(values["code"]))


def _cap(chip: Chip, values: Values, now_s: float) -> None:
    chip.faults.cap_share = values["share"]


def _tool(chip: Chip, values: Values, now_s: float) -> None:
    chip.faults.tool_code = int(values["code"])


def _refuse(chip: Chip, values: Values, now_s: float) -> None:
    chip.faults.refuses_levels = True


def _ignore(chip: Chip, values: Values, now_s: float) -> None:
    chip.faults.ignores_levels = True


def _restore(chip: Chip, values: Values, now_s: float) -> None:
    chip.faults = Faults()
    chip.card.model = _whole_card(chip)
    chip.card.power_on(chip.chip_id)


_CELSIUS = (-40.0, 150.0)
_SECONDS = (0.0, 86_400.0)
POKES: dict[str, Poke] = {
    "heat": Poke("Put the chip's card at a temperature.", _heat, {"celsius": _CELSIUS}, ("celsius",)),
    "ambient": Poke("Set the air temperature at the card.", _ambient, {"celsius": (-40.0, 80.0)}, ("celsius",)),
    "fan": Poke("Share of the usual air flow at the card.", _fan, {"share": (0.02, 10.0)}, ("share",)),
    "contact": Poke(
        "How many times worse the heat gets from chip to heatsink; 1 is sound.",
        _contact,
        {"factor": (1.0, 1000.0)},
        ("factor",),
    ),
    "memory": Poke("Leave the worker this much memory; without bytes, all of it.", _memory, {"bytes": (0, 2.0**50)}),
    "oom": Poke("Let the next steps run out of memory.", _oom, {"steps": (1, 1_000_000)}),
    "lose": Poke("Lose the chip: steps and sensors fail until it is restored.", _lose),
    "lie": Poke(
        "Let the temperature sensor say this.", _lie, {"celsius": (-1e9, 1e9), "seconds": _SECONDS}, ("celsius",)
    ),
    "freeze": Poke("Let the sensors go on saying what they say now.", _freeze, {"seconds": _SECONDS}),
    "hang": Poke("Let the chip's sensors not answer.", _hang, {"seconds": _SECONDS}, ("seconds",)),
    "alarm": Poke("Raise an event by its id, such as 0x80E01801.", _alarm, {"code": (1, 2**32 - 1)}, ("code",)),
    "cap": Poke(
        "Hold the clock at a share of the rated one, as a power cap from outside does.",
        _cap,
        {"share": (0.05, 1.0)},
        ("share",),
    ),
    "tool": Poke("Let npu-smi fail with a DCMI code, such as -8005.", _tool, {"code": (-9999, -1)}, ("code",)),
    "refuse": Poke("Refuse new work levels, as in a container.", _refuse),
    "ignore": Poke("Say yes to new work levels and do nothing.", _ignore),
    "restore": Poke("End every fault put into the chip; the air stays as it is.", _restore),
}
