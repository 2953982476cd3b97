"""The control loop: once a second samples, a decision for each device, and one call to the server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from coldplate.clock import Clock
from coldplate_governor.agents import SensorAgents
from coldplate_governor.control_link import Directive
from coldplate_governor.device_log import DeviceLog
from coldplate_governor.feedback import DeviceFeedback
from coldplate_governor.law import PERIOD_S, Decision, Inputs, LawState, decide
from coldplate_governor.sensors.device import DeviceReadings, DeviceSensors
from coldplate_governor.settings import GovernedDevice
from coldplate_governor.stop import StopRequest

_DUTY_WORTH_A_LINE = 0.1

log = structlog.get_logger(__name__)


class Link(Protocol):
    """Where directives go."""

    def apply(self, directives: Sequence[Directive]) -> dict[str, DeviceFeedback] | None: ...


@dataclass(slots=True)
class GovernorSnapshot:
    """What the last round did, for metrics."""

    directives: tuple[Directive, ...] = ()
    decisions: int = 0
    applied: int = 0
    period_s: float | None = None
    agent_restarts: dict[str, int] = field(default_factory=dict)


class DeviceGovernor:
    """One device: its agent, its sensors, the state of the law, and what was last logged of it."""

    def __init__(self, governed: GovernedDevice, agent: SensorAgents | None) -> None:
        self.name = str(governed.device)
        self.agent = agent
        self._profile = governed.profile
        self._sensors = DeviceSensors()
        self._state = LawState()
        self._sensor_log = DeviceLog(self.name)
        self._logged: Decision | None = None

    def round(self, feedback: DeviceFeedback | None, now_s: float) -> Directive:
        """Take what has come from the sensors and decide."""
        samples = self.agent.take() if self.agent else []
        for sample in samples:
            self._sensors.take(sample.sensor, sample.readings, sample.at_s)
            self._sensors.note(sample.sensor, sample.unusable)
        readings = self._sensors.fuse(now_s)
        self._sensor_log.samples(samples, readings.doubted)
        self._sensor_log.readings(readings)
        self._state, decision = decide(self._profile, self._state, _inputs(readings, feedback), now_s)
        self._log_change(decision)
        return Directive(self.name, decision, readings)

    def _log_change(self, decision: Decision) -> None:
        if self._logged is not None and not _worth_a_line(self._logged, decision):
            return
        limits = decision.limits.set_fields()
        shown = limits or {"released": True}
        why = "; ".join(cause.text for cause in decision.causes)
        if self._logged is None and not limits:
            log.info("governing", device=self.name, profile=self._profile.name)
        else:
            log.info(
                "limits",
                device=self.name,
                mode=decision.mode,
                **shown,
                why=why or "no cause left",
            )
        self._logged = decision


def run(
    devices: Sequence[DeviceGovernor],
    link: Link,
    clock: Clock,
    stop: StopRequest,
    snapshot: GovernorSnapshot,
    first_sample_s: float = 2.5,
) -> None:
    """Govern until ``stop`` is set.

    The first decision waits up to ``first_sample_s`` for every sensor to be heard twice, so that a device is not called
    blind while its agent starts. Rounds keep to a grid of one second; a round that was late does not make the next ones
    hurry.
    """
    feedback: dict[str, DeviceFeedback] = {}
    for device in devices:
        if device.agent:
            device.agent.supervise()
    due, before = clock.now() + first_sample_s, None
    for device in devices:
        if device.agent:
            device.agent.wait_first_sample(due - clock.now())
    due = clock.now()
    while not stop.is_set():
        now = clock.now()
        for device in devices:
            if device.agent:
                device.agent.supervise()
        directives = tuple(device.round(feedback.get(device.name), now) for device in devices)
        reply = link.apply(directives)
        feedback = feedback if reply is None else reply
        snapshot.directives = directives
        snapshot.decisions += len(directives)
        snapshot.applied += reply is not None
        snapshot.period_s = None if before is None else now - before
        snapshot.agent_restarts = {device.name: device.agent.restarts for device in devices if device.agent}
        before = now
        due = max(due + PERIOD_S, clock.now())
        stop.wait(due - clock.now())


def _inputs(readings: DeviceReadings, feedback: DeviceFeedback | None) -> Inputs:
    values = readings.values
    return Inputs(
        temperature_celsius=readings.last_temperature_celsius,
        temperature_age_s=readings.temperature_age_s,
        memory_used_bytes=values.get("memory_used_bytes"),
        memory_total_bytes=values.get("memory_total_bytes"),
        memory_pressure_percent=values.get("memory_pressure_percent"),
        utilization_percent=values.get("utilization_percent"),
        frequency_mhz=values.get("frequency_mhz"),
        rated_frequency_mhz=values.get("rated_frequency_mhz"),
        running=feedback.running if feedback else None,
        other_duty=feedback.other_duty if feedback else None,
    )


def _worth_a_line(old: Decision, new: Decision) -> bool:
    """A change a person wants to read: not each hundredth of a duty that is on its way."""
    if old.mode != new.mode or old.limits.max_batch != new.limits.max_batch:
        return True
    if {cause.code for cause in old.causes} != {cause.code for cause in new.causes} and new.mode != "NOMINAL":
        return True
    return abs(old.duty - new.duty) >= _DUTY_WORTH_A_LINE or ((old.duty < 1) != (new.duty < 1) and new.duty == 1)
