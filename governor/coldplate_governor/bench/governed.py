"""Our law as a controller of the twin: raw sensors through the real validation, then ``law.decide``."""

from collections.abc import Callable, Sequence

from coldplate.profile import DeviceProfile
from coldplate_governor.law import Decision, Inputs, LawState, decide
from coldplate_governor.sensors.device import DeviceSensors
from coldplate_governor.twin.control import Command, Sight

# What a tick was decided from and what came of it: for the replay check.
Witness = Callable[[float, LawState, dict[str, Inputs], LawState, dict[str, Decision]], None]

_SOURCE = "twin"


class Governed:
    """The governor's loop for the chips of one card, without its processes."""

    def __init__(self, profile: DeviceProfile, chips: int, witness: Witness | None = None) -> None:
        self._profile = profile
        self._names = [f"npu:{index}" for index in range(chips)]
        self._sensors = [DeviceSensors() for _ in range(chips)]
        self._state = LawState()
        self._commands = [Command() for _ in range(chips)]
        self._witness = witness

    def tick(self, now_s: float, sights: Sequence[Sight]) -> Sequence[Command]:
        inputs = {
            name: _inputs(sensors, sight, now_s)
            for name, sensors, sight in zip(self._names, self._sensors, sights, strict=True)
        }
        before = self._state
        self._state, decisions = decide(self._profile, before, inputs, now_s)
        if self._witness is not None:
            self._witness(now_s, before, inputs, self._state, decisions)
        for name, command in zip(self._names, self._commands, strict=True):
            _obey(command, decisions[name])
        return self._commands


def _inputs(sensors: DeviceSensors, sight: Sight, now_s: float) -> Inputs:
    readings: dict[str, float] = {"utilization_percent": sight.utilization_percent or 0.0}
    if sight.temperature_celsius is not None:
        readings["temperature_celsius"] = sight.temperature_celsius
    if sight.card_watts is not None:
        readings["power_watts"] = sight.card_watts
    if sight.frequency_mhz is not None and sight.rated_frequency_mhz is not None:
        readings["frequency_mhz"] = sight.frequency_mhz
        readings["rated_frequency_mhz"] = sight.rated_frequency_mhz
    sensors.take(_SOURCE, readings, sight.at_s)
    seen = sensors.fuse(now_s)
    return Inputs(
        temperature_celsius=seen.last_temperature_celsius,
        temperature_age_s=seen.temperature_age_s,
        utilization_percent=seen.values.get("utilization_percent"),
        frequency_mhz=seen.values.get("frequency_mhz"),
        rated_frequency_mhz=seen.values.get("rated_frequency_mhz"),
        power_watts=seen.values.get("power_watts"),
        running=sight.running,
        waiting=sight.waiting,
        busy_share=sight.busy_share,
        prefill_tokens_per_s=sight.prefill_tokens_per_s,
        decode_tokens_per_s=sight.decode_tokens_per_s,
        decode_steps_per_s=sight.decode_steps_per_s,
        engine_up=True,
        other_duty=sight.operator_duty,
        frequency_levers=bool(sight.clock_shares),
        clock_shares=sight.clock_shares,
    )


def _obey(command: Command, decision: Decision) -> None:
    limits = decision.limits
    command.duty = 1.0 if limits.duty is None else limits.duty
    command.clock = 1.0 if decision.clock_share is None else decision.clock_share
    command.prefill_tokens = limits.max_prefill_tokens
    command.max_batch = limits.max_batch
    command.admit = limits.admit is not False
    command.mode = decision.mode
