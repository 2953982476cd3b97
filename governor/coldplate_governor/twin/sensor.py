"""A temperature sensor as boards have them: late, noisy, in whole degrees, and at times lying."""

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Literal

FaultKind = Literal["zeros", "frozen", "sentinel", "jump", "dead"]
FAULT_KINDS: tuple[FaultKind, ...] = ("zeros", "frozen", "sentinel", "jump", "dead")
SENTINEL_CELSIUS = 127.0  # what a failed conversion returns on parts with a signed 8-bit register
JUMP_CELSIUS = -15.0  # a lie that stays plausible, in the dangerous direction


@dataclass(frozen=True, slots=True)
class SensorModel:
    """Degrees Celsius and whole seconds."""

    quantum_celsius: float = 1.0
    noise_celsius: float = 0.4
    delay_s: int = 2


@dataclass(frozen=True, slots=True)
class SensorFault:
    """What the sensor does between two moments: ``zeros``, ``frozen`` at its last reading, ``sentinel`` (127 degC),
    ``jump`` (15 degC too low), ``dead`` (nothing at all)."""

    kind: FaultKind
    from_s: float
    until_s: float


class TemperatureSensor:
    """One sensor on one chip; noise comes from the generator it is given."""

    def __init__(self, model: SensorModel, noise: Random, fault: SensorFault | None = None) -> None:
        self._model = model
        self._noise = noise
        self._fault = fault
        self._past: deque[float] = deque(maxlen=model.delay_s + 1)
        self._reading: float | None = None

    def read(self, now_s: float, celsius: float) -> float | None:
        """The reading at ``now_s``, one second after the last one, of a chip that is really at ``celsius``."""
        model, fault = self._model, self._fault
        self._past.append(celsius)
        true = self._past[0] + self._noise.gauss(0.0, model.noise_celsius)
        reading = round(true / model.quantum_celsius) * model.quantum_celsius
        if fault is not None and fault.from_s <= now_s < fault.until_s:
            match fault.kind:
                case "zeros":
                    return 0.0
                case "sentinel":
                    return SENTINEL_CELSIUS
                case "jump":
                    return reading + JUMP_CELSIUS
                case "dead":
                    return None
                case "frozen":
                    return self._reading
        self._reading = reading
        return reading
