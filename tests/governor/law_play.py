"""Playing sequences of inputs to the law."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from coldplate.profile import DeviceProfile, load_profile
from coldplate_governor.law import Decision, Inputs, LawState, decide

NPU, DUO, CPU = load_profile("310p-pro"), load_profile("310p-duo"), load_profile("cpu")
CHIP = "npu:0"

Steps = list[tuple[float, Inputs]]


def play(
    profile: DeviceProfile, steps: Steps, state: LawState | None = None, now_s: float = 1000.0
) -> tuple[LawState, list[Decision], float]:
    """Decide for one device step after step; each step is the seconds since the last one and its inputs."""
    state, decisions = state or LawState(), []
    for dt, inputs in steps:
        now_s += dt
        state, decided = decide(profile, state, {CHIP: inputs}, now_s)
        decisions.append(decided[CHIP])
    return state, decisions, now_s


def play_group(
    profile: DeviceProfile, rounds: Sequence[Mapping[str, Inputs]], state: LawState | None = None, now_s: float = 1000.0
) -> tuple[LawState, list[dict[str, Decision]], float]:
    """The same for several devices on one heatsink, once a second."""
    state, decisions = state or LawState(), []
    for inputs in rounds:
        now_s += 1.0
        state, decided = decide(profile, state, inputs, now_s)
        decisions.append(decided)
    return state, decisions, now_s


def hold(celsius: float | None, seconds: int, age: float = 0.0, **more: Any) -> Steps:
    """The same inputs for so many seconds; ``age`` is that of the temperature."""
    return [(1.0, at(celsius, age, **more))] * seconds


def ramp(start: float, end: float, per_s: float = 0.5, **more: Any) -> Steps:
    """From one temperature to another, as a heatsink lets a chip go there."""
    count = math.ceil(abs(end - start) / per_s)
    return [(1.0, at(start + (end - start) * second / count, **more)) for second in range(1, count + 1)]


def at(celsius: float | None, age: float = 0.0, **more: Any) -> Inputs:
    return Inputs(temperature_celsius=celsius, temperature_age_s=None if celsius is None else age, **more)


def codes(decision: Decision) -> set[str]:
    return {cause.code for cause in decision.causes}


wild = st.none() | st.floats()  # NaN and infinities too
sane_celsius = st.floats(1, 125)
flags = st.none() | st.booleans()
any_inputs = st.builds(
    Inputs,
    temperature_celsius=wild | sane_celsius,
    temperature_age_s=wild | st.floats(0, 90),
    memory_used_bytes=wild | st.floats(0, 1e11),
    memory_total_bytes=wild | st.floats(0, 1e11),
    memory_pressure_percent=wild | st.floats(0, 100),
    utilization_percent=wild | st.floats(0, 100),
    frequency_mhz=wild | st.floats(0, 2000),
    rated_frequency_mhz=wild | st.floats(0, 2000),
    power_watts=wild | st.floats(0, 500),
    power_limit_watts=wild | st.floats(0, 500),
    throttle_cause=st.none() | st.sampled_from(["none", "idle", "thermal", "power-cap+thermal", "", "bit-7"]),
    firmware_limit_celsius=wild | st.floats(-300, 130),
    reset_celsius=wild | st.floats(-300, 200),
    running=st.none() | st.integers(-5, 10_000),
    waiting=st.none() | st.integers(-5, 10_000),
    queue_wait_s=wild | st.floats(0, 600),
    busy_share=wild | st.floats(0, 1),
    prefill_tokens_per_s=wild | st.floats(0, 1e5),
    decode_tokens_per_s=wild | st.floats(0, 1e5),
    decode_steps_per_s=wild | st.floats(0, 1e3),
    engine_up=flags,
    alternative=flags,
    draining=st.booleans(),
    other_duty=wild | st.floats(0, 1),
    levers=st.sampled_from([(), ("duty", "max_batch"), ("max_batch", "max_prefill_tokens"), ("cpu_share",)]),
    frequency_levers=st.booleans(),
    clock_shares=st.sampled_from([(), (1.0, 0.817, 0.408), (1.0, 0.5)]),
)
sequences = st.lists(st.tuples(st.floats(0, 40), any_inputs), max_size=6)
profiles = st.sampled_from([NPU, DUO, CPU, load_profile("310b")])
