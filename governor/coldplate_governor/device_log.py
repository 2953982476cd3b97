"""What the log says of a device's sensors: a line when something begins and one when it ends, none for each second."""

from collections.abc import Iterable

import structlog

from coldplate_governor.agents import Sample
from coldplate_governor.sensors.device import DeviceReadings
from coldplate_governor.sensors.npu_faults import event_meaning

log = structlog.get_logger(__name__)


class DeviceLog:
    """Remembers what was last said of one device's sensors."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._problems: dict[str, str] = {}
        self._unusable: frozenset[str] = frozenset()
        self._lost: frozenset[str] = frozenset()
        self._faults: frozenset[str] = frozenset()
        self._suspect = False

    def samples(self, samples: Iterable[Sample], doubted: dict[str, str]) -> None:
        """Take a round's samples, and why the newest readings of some quantities are not believed."""
        problems = {key: text for key, text in self._problems.items() if "." not in key}
        unusable = set(self._unusable)
        for sample in samples:
            problems.pop(sample.sensor, None)
            unusable.discard(sample.sensor)
            if sample.problem:
                problems[sample.sensor] = sample.problem
                if sample.unusable:
                    unusable.add(sample.sensor)
        self._tell_problems(problems | doubted, frozenset(unusable))

    def readings(self, readings: DeviceReadings) -> None:
        """Tell of readings that are lost or back, of faults the device reports, and of a suspect temperature."""
        lost, faults = frozenset(readings.lost), frozenset(readings.error_codes)
        if gone := sorted(lost - self._lost):
            log.warning("readings lost", device=self._device, lost=", ".join(gone))
        if back := sorted(self._lost - lost):
            log.info("readings back", device=self._device, back=", ".join(back))
        for code in sorted(faults - self._faults):
            log.warning("the device reports a fault", device=self._device, fault=event_meaning(code))
        for code in sorted(self._faults - faults):
            log.info("the device's fault is over", device=self._device, fault=event_meaning(code))
        if readings.suspect and not self._suspect:
            log.warning(
                "the temperature does not fit the device's model",
                device=self._device,
                reason=readings.suspect,
                do="look at the sensor, the fan and the heatsink",
            )
        self._lost, self._faults, self._suspect = lost, faults, readings.suspect is not None

    def _tell_problems(self, problems: dict[str, str], unusable: frozenset[str]) -> None:
        """One line when a sensor begins to have a problem, however its words change, and one when it is over."""
        for key in sorted(unusable - self._unusable):
            log.warning(
                "sensor cannot be used here",
                device=self._device,
                sensor=key,
                reason=problems[key],
                do="until it can, this device is steered by what other sensors tell; without any, by its safe limits",
            )
        for key in sorted(problems.keys() - self._problems.keys() - unusable):
            log.warning("sensor problem", device=self._device, sensor=key, reason=problems[key])
        for key in sorted(self._problems.keys() - problems.keys()):
            log.info("sensor well again", device=self._device, sensor=key)
        self._problems, self._unusable = problems, unusable
