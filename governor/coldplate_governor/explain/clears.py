"""What would clear the constraint that binds, in words with the numbers at hand."""

from coldplate.profile import DeviceProfile
from coldplate.words import celsius_words, seconds_words
from coldplate_governor.law import Decision, Inputs
from coldplate_governor.law.modes import COOL_CELSIUS, COOL_FOR_S, SEVERE

_MUCH_LESS = 0.05  # of full duty


def clears(
    profile: DeviceProfile, decision: Decision, inputs: Inputs, neighbours: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Sentences for a person; none when nothing binds and the mode is NOMINAL. ``neighbours`` share its heatsink."""
    if decision.mode in SEVERE:
        found = _severe(profile, decision, inputs)
    elif decision.binding == "thermal" and neighbours and _has_less(decision):
        found = [_shared(neighbours)]
    else:
        found = _of_binding(profile, decision, inputs)
    found += _of_mode(decision)
    if found and decision.dwell_left_s > 0:
        found.append(f"not before {seconds_words(decision.dwell_left_s)} have passed: {decision.mode} lasts so long")
    return tuple(found)


def _has_less(decision: Decision) -> bool:
    """Less than its part of the budget if all devices on the heatsink had the same: the others ask for more."""
    whole = decision.terms.slewed
    return whole is not None and decision.duty < whole - _MUCH_LESS


def _shared(neighbours: tuple[str, ...]) -> str:
    names = " and ".join(neighbours)
    return f"it has more to do, or {names} on the same heatsink less: the heat they may make is split by their load"


def _severe(profile: DeviceProfile, decision: Decision, inputs: Inputs) -> list[str]:
    """CRITICAL and FALLBACK end when it is cool enough; a lost sensor or worker has to be back first."""
    found = []
    if decision.binding in ("sensor", "device"):
        found = _of_binding(profile, decision, inputs)
    if decision.terms.filtered is not None:
        below = 0.0 if decision.binding == "device" else COOL_CELSIUS
        release = _target(profile, decision) - below
        found.append(
            f"it is below {celsius_words(release)} for {COOL_FOR_S:g} s; it then takes work again step by step"
        )
    return found


def _of_binding(profile: DeviceProfile, decision: Decision, inputs: Inputs) -> list[str]:
    match decision.binding:
        case "thermal":
            return _thermal(profile, decision)
        case "power":
            return [_power(inputs)]
        case "firmware":
            return [_firmware(inputs)]
        case "memory":
            return [_memory(profile, inputs)]
        case "queue":
            return ["requests in the queue wait less long"]
        case "sensor":
            return [_sensor(inputs)]
        case "operator":
            return ["whoever set the limit by hand takes it back with `coldplate limit --release`"]
        case "device":
            return ["a worker serves the device again"]
        case _:
            return []


def _thermal(profile: DeviceProfile, decision: Decision) -> list[str]:
    terms, target = decision.terms, _target(profile, decision)
    at = celsius_words(target)
    rate = f"the duty then rises by at most {100 * profile.gains.slew_up_per_s:.0f} % each second"
    if terms.filtered is None:
        return [f"the temperature is below {at}; {rate}"]
    excess = terms.filtered - target
    if excess > 0:
        return [f"the temperature falls by {excess:.1f} °C to {at}; {rate}"]
    return [
        f"it needs less than its cooling takes away at {at}: less load, more air or cooler air; {rate}",
    ]


def _target(profile: DeviceProfile, decision: Decision) -> float:
    told = decision.terms.target
    return told if told is not None else profile.temperature.target_celsius


def _power(inputs: Inputs) -> str:
    if inputs.power_watts is None or inputs.power_limit_watts is None:
        return "the power falls below its limit"
    return f"the power falls from {inputs.power_watts:.0f} W below its limit of {inputs.power_limit_watts:.0f} W"


def _firmware(inputs: Inputs) -> str:
    cause = f" (it names {inputs.throttle_cause})" if inputs.throttle_cause not in (None, "", "none") else ""
    if inputs.frequency_mhz is None or inputs.rated_frequency_mhz is None:
        return f"the firmware stops throttling the chip{cause}"
    return (
        f"the firmware gives the chip its clock back{cause}: it runs at {inputs.frequency_mhz:.0f} of "
        f"{inputs.rated_frequency_mhz:.0f} MHz"
    )


def _memory(profile: DeviceProfile, inputs: Inputs) -> str:
    used, total = inputs.memory_used_bytes, inputs.memory_total_bytes
    wanted = f"less than {profile.memory.low_share:.0%} of memory is used"
    return f"{wanted}; it is {used / total:.0%}" if used is not None and total else wanted


def _sensor(inputs: Inputs) -> str:
    if inputs.temperature_age_s is None:
        return "a sensor tells a temperature that can be believed; none has so far"
    age = seconds_words(inputs.temperature_age_s)
    return f"a sensor tells a temperature that can be believed; the last was {age} ago"


def _of_mode(decision: Decision) -> list[str]:
    match decision.mode:
        case "RECOVERING":
            return ["its recovery goes well: each stage takes twice as many streams"]
        case "DRAINING":
            return ["the drain is taken back with `coldplate resume`"]
        case "SAFE" if decision.rule == "TAKEOVER":
            return ["it has come down from the temperature it was found at"]
        case _:
            return []
