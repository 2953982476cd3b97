"""What others do, on the same lever: one controller for each chip, fed with the raw sensor as they would be.

Each has the best reading of its idea: the lever is continuous where the idea allows it, and a failed read keeps the
last temperature, as the Linux thermal core does.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from coldplate.profile import DeviceProfile
from coldplate_governor.twin.control import Command, Sight
from coldplate_governor.twin.plants import Plant, nominal

SCRIPT_CLOCK = 600 / 1224  # the field report's script: 600 MHz of an AI core rated at 1224
SCRIPT_CELSIUS = 80.0


class Policy(Protocol):
    """One chip's command from its temperature; called once a second."""

    def act(self, now_s: int, celsius: float, command: Command) -> None: ...


class Baseline:
    """A policy for each chip. A chip whose sensor says nothing keeps its last temperature."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._policies = policies
        self._last = [0.0] * len(policies)
        self._commands = [Command() for _ in policies]

    def tick(self, now_s: float, sights: Sequence[Sight]) -> Sequence[Command]:
        for index, (policy, sight) in enumerate(zip(self._policies, sights, strict=True)):
            if sight.temperature_celsius is not None:
                self._last[index] = sight.temperature_celsius
            policy.act(int(now_s), self._last[index], self._commands[index])
        return self._commands


class FirmwareOnly:
    """Nobody governs: full duty, and the firmware's cliff."""

    def act(self, now_s: int, celsius: float, command: Command) -> None:
        command.duty = 1.0


class Script:
    """``every 5 s: if T > 80: set the clock to 600 MHz, else to the rated one``."""

    def act(self, now_s: int, celsius: float, command: Command) -> None:
        if now_s % 5 == 0:
            command.clock = SCRIPT_CLOCK if celsius > SCRIPT_CELSIUS else 1.0


class BangBang:
    """Least duty from the target on, full duty again 3 degC below it."""

    def __init__(self, profile: DeviceProfile) -> None:
        self._off = profile.temperature.target_celsius
        self._low = profile.levers.min_duty

    def act(self, now_s: int, celsius: float, command: Command) -> None:
        if celsius >= self._off:
            command.duty = self._low
        elif celsius <= self._off - 3:
            command.duty = 1.0


class StepWise:
    """Linux step_wise with eight cooling states: at or above the trip and rising, one state more; below it and
    falling, one less; otherwise the same. Polled every ``poll_s``: faster than the sensor it over-reacts."""

    def __init__(self, profile: DeviceProfile, poll_s: int = 5, states: int = 8) -> None:
        self._trip = profile.temperature.target_celsius
        self._low = profile.levers.min_duty
        self._poll_s = poll_s
        self._deepest = states - 1
        self._state = 0
        self._before = 0.0

    def act(self, now_s: int, celsius: float, command: Command) -> None:
        if now_s % self._poll_s:
            return
        if celsius >= self._trip and celsius > self._before:
            self._state = min(self._deepest, self._state + 1)
        elif celsius < self._trip and celsius < self._before:
            self._state = max(0, self._state - 1)
        self._before = celsius
        command.duty = 1 - (1 - self._low) * self._state / self._deepest


class PowerAllocator:
    """Linux power_allocator (IPA) with the kernel's default gains: ``k_po = P_sus / (T_set - T_on)``,
    ``k_pu = 2 k_po``, ``k_i = k_pu / 10``, ``k_d = 0``, no integral below the target; reset and full power below the
    switch-on trip.

    Its idea of the hardware is the nominal plant, as a vendor would write it into a device tree; ``wrong`` scales the
    sustainable power. One zone for each chip, with the chip's share of the card's sustainable power.
    """

    def __init__(self, plant: Plant, wrong: float = 1.0) -> None:
        card, profile = nominal(plant.kind).card, plant.profile
        self._target = profile.temperature.target_celsius
        self._on = self._target - 15.0
        resistance = card.junction_resistance + card.chips * card.sink_resistance
        self._sustainable = wrong * (self._target - plant.ambient_celsius) / resistance
        self._idle, self._max = card.idle_watts, card.max_watts
        self._low = profile.levers.min_duty
        self._above = self._sustainable / (self._target - self._on)
        self._below = 2 * self._above
        self._ki = self._below / 10
        self._integral = 0.0

    def act(self, now_s: int, celsius: float, command: Command) -> None:
        if celsius < self._on:
            self._integral, command.duty = 0.0, 1.0
            return
        error = self._target - celsius
        watts = self._sustainable + (self._above if error < 0 else self._below) * error + self._integral
        if error < 0:
            grown = self._integral + self._ki * error
            if abs(grown) < self._max:
                self._integral = grown
        watts = min(self._max, max(0.0, watts))
        command.duty = min(1.0, max(self._low, (watts - self._idle) / (self._max - self._idle)))


class NoAntiWindup:
    """The negative control: the profile's own PI gains and slew, and an integral that nothing bounds."""

    def __init__(self, profile: DeviceProfile) -> None:
        self._target = profile.temperature.target_celsius
        self._low = profile.levers.min_duty
        self._gains = profile.gains
        self._filtered: float | None = None
        self._integral, self._duty = 1.0, 1.0

    def act(self, now_s: int, celsius: float, command: Command) -> None:
        gains = self._gains
        before = celsius if self._filtered is None else self._filtered
        self._filtered = before + gains.filter * (celsius - before)
        error = self._target - self._filtered
        wanted = min(1.0, max(self._low, gains.kp * error + self._integral))
        self._duty = min(self._duty + gains.slew_up_per_s, max(self._duty - gains.slew_down_per_s, wanted))
        self._integral += gains.kp / gains.ti_s * error
        command.duty = self._duty


# Name -> one chip's policy. The names are those of the table.
BASELINES: dict[str, Callable[[Plant], Policy]] = {
    "firmware only": lambda plant: FirmwareOnly(),
    "80 °C script": lambda plant: Script(),
    "bang-bang 3 °C": lambda plant: BangBang(plant.profile),
    "step_wise": lambda plant: StepWise(plant.profile),
    "IPA": lambda plant: PowerAllocator(plant),
    "IPA, power +40 %": lambda plant: PowerAllocator(plant, 1.4),
    "IPA, power -40 %": lambda plant: PowerAllocator(plant, 0.6),
    "PI, no anti-windup": lambda plant: NoAntiWindup(plant.profile),
}
