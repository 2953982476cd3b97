"""How far a temperature is trusted: by its age, and by whether a chip could have cooled so fast.

A device never seen with a temperature is *absent*. One that had a temperature and lost it is held for 5 s, halved until
15 s, at its floor until 60 s and then given up (timings of governor.md B9). Rises are always believed: the sensors
have filtered them, and believing one costs work, not hardware. Falls are not: no heatsink lets a chip cool by 8 °C
between two samples, so a reading that fell further is followed only slowly, and counts as lost meanwhile.
"""

import math
from dataclasses import dataclass
from typing import Literal

from coldplate_governor.law.state import TrustState
from coldplate_governor.law.types import Inputs

FRESH_S, HOLD_S, HALVE_S, LOST_S = 3.5, 5.0, 15.0, 60.0  # a sensor tool may well take 3 s
HALVED_DUTY = 0.5
_FALL_CELSIUS, _FALL_PER_S = 8.0, 4.0
_FOLLOW_PER_S, _FOLLOW_LATER_PER_S, _LATER_S = 0.1, 0.5, 120.0  # a doubted fall of 15 °C is believed after 70 s
_HOTTEST_CELSIUS = 125.0

Level = Literal["absent", "fresh", "held", "halved", "floor", "lost"]


@dataclass(frozen=True, slots=True)
class Trust:
    """The temperature to go by, None if there never was one; ``age_s`` counts from the last that was believed."""

    level: Level
    celsius: float | None = None
    age_s: float = 0.0
    doubted: bool = False


def judge(state: TrustState, inputs: Inputs, now_s: float, woke_s: float | None = None) -> tuple[TrustState, Trust]:
    """Trust in the temperature of ``inputs``. In one state a lower reading never earns more trust than a higher one.

    Ages count from ``woke_s`` at most: while the machine slept no sensor could speak.
    """
    awake = math.inf if woke_s is None else max(0.0, now_s - woke_s)
    told, age = inputs.temperature_celsius, min(awake, max(0.0, inputs.temperature_age_s or 0.0))
    if told is None or told <= 0:
        if state.celsius is None:
            return state, Trust("absent")
        age = min(awake, max(0.0, now_s - state.at_s))
        return state, Trust(_level(age), state.celsius, age, state.doubted_since_s is not None)
    celsius = min(told, _HOTTEST_CELSIUS)
    measured_s = now_s - age
    if state.celsius is None:
        return TrustState(celsius, measured_s), Trust(_level(age), celsius, age)
    since = state.doubted_since_s
    if since is not None and woke_s is not None and woke_s > since:
        since = None
    if since is None:
        allowed = max(_FALL_CELSIUS, _FALL_PER_S * (measured_s - state.at_s))
    else:
        spent = max(0.0, now_s - since)
        allowed = _FALL_CELSIUS + _FOLLOW_PER_S * spent + _FOLLOW_LATER_PER_S * max(0.0, spent - _LATER_S)
        age = max(age, now_s - since)  # of the state before this sample, whatever it says
    lowest = state.celsius - allowed
    if celsius >= lowest:
        return TrustState(celsius, measured_s), Trust(_level(age), celsius, age, since is not None)
    doubted = TrustState(state.celsius, state.at_s, now_s if since is None else since)
    return doubted, Trust(_level(age), lowest, age, since is not None)


def _level(age_s: float) -> Level:
    if age_s < HOLD_S:
        return "fresh" if age_s < FRESH_S else "held"
    if age_s < HALVE_S:
        return "halved"
    return "floor" if age_s < LOST_S else "lost"
