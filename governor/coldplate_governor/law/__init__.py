"""The control law: from what is seen of the devices on one heatsink to the limits they get.

Pure functions of (profile, state, inputs, monotonic time): no clock, no randomness, no input that raises.
"""

from coldplate_governor.law.decide import decide
from coldplate_governor.law.state import LawState
from coldplate_governor.law.types import MODES, PERIOD_S, Binding, Cause, Decision, Inputs, Mode, Terms

__all__ = ["MODES", "PERIOD_S", "Binding", "Cause", "Decision", "Inputs", "LawState", "Mode", "Terms", "decide"]
