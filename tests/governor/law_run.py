"""Ticks of the real law over made-up inputs: heat that comes and goes, memory that fills, a sensor that is lost."""

import math
from collections.abc import Iterator, Sequence

from coldplate.profile import load_profile
from coldplate_governor.explain.change import MEASURED
from coldplate_governor.explain.tick import Tick
from coldplate_governor.law import Inputs, LawState, decide

PAIR = ("npu:0", "npu:1")
GIB = 2.0**30


def inputs_at(second: int, index: int) -> Inputs:
    """Device ``index`` of a card: 62 to 92 °C over four minutes, memory that fills, 20 s in 300 without temperature."""
    lost_s = second % 300 - 260
    age = 0.3 if not 0 < lost_s <= 20 else 0.3 + lost_s
    return Inputs(
        temperature_celsius=77 + 15 * math.sin(second / 38 + index) + 0.1 * (second * 7 % 5),
        temperature_age_s=age,
        memory_used_bytes=(14 + 9 * math.sin(second / 90) ** 2) * GIB,
        memory_total_bytes=24 * GIB,
        utilization_percent=80.0,
        running=6,
        waiting=second % 3,
        busy_share=0.7,
        engine_up=True,
    )


def law_run(seconds: int, devices: Sequence[str] = PAIR, profile: str = "310p-duo") -> Iterator[Tick]:
    """One tick a second, at moments that no float holds exactly."""
    chosen, state = load_profile(profile), LawState()
    for second in range(seconds):
        now_s = 5000.1 + second * 1.0003
        inputs = {device: inputs_at(second, index) for index, device in enumerate(devices)}
        ages = {device: _ages(known) for device, known in inputs.items()}
        after, decisions = decide(chosen, state, inputs, now_s)
        yield Tick("+".join(devices), chosen, now_s, state, inputs, after, decisions, ages)
        state = after


def _ages(inputs: Inputs) -> dict[str, float]:
    return {name: 0.3 for name in sorted(MEASURED) if getattr(inputs, name, None) is not None}
