"""One round of the law for one group of devices: all that went in and all that came out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coldplate.profile import DeviceProfile
from coldplate_governor.law import Decision, Inputs, LawState
from coldplate_governor.sensors.device import DeviceReadings


@dataclass(frozen=True, slots=True)
class Tick:
    """``decide(profile, before, inputs, now_s)`` gave ``after`` and ``decisions``.

    ``ages`` tells, device by device, how many seconds old each input was; ``doubted`` why a newest reading is not
    believed. Neither goes into the law.
    """

    group: str
    profile: DeviceProfile
    now_s: float
    before: LawState
    inputs: Mapping[str, Inputs]
    after: LawState
    decisions: Mapping[str, Decision]
    ages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    doubted: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def ages_of(readings: DeviceReadings) -> dict[str, float]:
    """How old each input of the law is; the power may be that of the whole card."""
    ages = dict(readings.ages)
    if "card_power_watts" in ages:
        ages.setdefault("power_watts", ages["card_power_watts"])
    return ages
