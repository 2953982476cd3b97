"""The control loop: once a second samples, a decision for each device, and one call to the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coldplate.clock import Clock
from coldplate_governor.agents import SensorAgents
from coldplate_governor.control_link import Directive
from coldplate_governor.device_log import DeviceLog
from coldplate_governor.explain.recorder import RecordCounts
from coldplate_governor.explain.scribe import Scribe
from coldplate_governor.explain.tick import Tick, ages_of
from coldplate_governor.explain.trail import Account
from coldplate_governor.feedback import DeviceFeedback
from coldplate_governor.law import PERIOD_S, Decision, Inputs, LawState, decide
from coldplate_governor.sensors.device import DeviceReadings, DeviceSensors
from coldplate_governor.settings import GovernedDevice
from coldplate_governor.stop import StopRequest
from coldplate_governor.suspend import SleepMeter


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
    record: RecordCounts | None = None


class DeviceGovernor:
    """One device: its agent, its sensors, and what was last logged of them."""

    def __init__(self, governed: GovernedDevice, agent: SensorAgents | None) -> None:
        self.name = str(governed.device)
        self.agent = agent
        self.profile = governed.profile
        self._sensors = DeviceSensors()
        self._sensor_log = DeviceLog(self.name)
        self._readings = DeviceReadings()

    def observe(self, feedback: DeviceFeedback | None, now_s: float) -> Inputs:
        """Take what has come from the sensors; returns what the law is told."""
        samples = self.agent.take() if self.agent else []
        for sample in samples:
            self._sensors.take(sample.sensor, sample.readings, sample.at_s)
            self._sensors.note(sample.sensor, sample.unusable)
        self._readings = self._sensors.fuse(now_s)
        self._sensor_log.samples(samples, self._readings.doubted)
        self._sensor_log.readings(self._readings)
        return _inputs(self._readings, feedback)

    @property
    def readings(self) -> DeviceReadings:
        """What was last observed."""
        return self._readings

    def conclude(self, decision: Decision, account: Account) -> Directive:
        """Act on the law's decision."""
        return Directive(self.name, decision, self._readings, account)


class HeatsinkGovernor:
    """The devices on one heatsink, and the state of the law for them. They have one profile."""

    def __init__(self, devices: Sequence[DeviceGovernor], scribe: Scribe | None = None) -> None:
        """``scribe`` is told of every decision; one is shared by all heatsinks."""
        self.devices = tuple(devices)
        self.name = "+".join(device.name for device in devices)
        self._scribe = scribe or Scribe()
        self._profile = devices[0].profile
        self._state = LawState()

    def round(self, feedback: Mapping[str, DeviceFeedback], now_s: float, slept_s: float = 0.0) -> list[Directive]:
        """One decision for all of them. ``slept_s`` is how long the machine has been suspended so far."""
        inputs = {device.name: device.observe(feedback.get(device.name), now_s) for device in self.devices}
        before, at_s = self._state, now_s + slept_s
        self._state, decisions = decide(self._profile, before, inputs, at_s)
        seen = {device.name: device.readings for device in self.devices}
        tick = Tick(
            *(self.name, self._profile, at_s, before, inputs, self._state, decisions),
            ages={name: ages_of(readings) for name, readings in seen.items()},
            doubted={name: readings.doubted for name, readings in seen.items()},
        )
        accounts = self._scribe.note(tick)
        return [device.conclude(decisions[device.name], accounts[device.name]) for device in self.devices]


def run(
    heatsinks: Sequence[HeatsinkGovernor],
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
    devices = [device for heatsink in heatsinks for device in heatsink.devices]
    sleep = SleepMeter()
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
        slept_s = sleep.slept_s()
        directives = tuple(item for heatsink in heatsinks for item in heatsink.round(feedback, now, slept_s))
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
    values, server = readings.values, feedback or DeviceFeedback()
    return Inputs(
        temperature_celsius=readings.last_temperature_celsius,
        temperature_age_s=readings.temperature_age_s,
        memory_used_bytes=values.get("memory_used_bytes"),
        memory_total_bytes=values.get("memory_total_bytes"),
        memory_pressure_percent=values.get("memory_pressure_percent"),
        utilization_percent=values.get("utilization_percent"),
        frequency_mhz=values.get("frequency_mhz"),
        rated_frequency_mhz=values.get("rated_frequency_mhz"),
        power_watts=values.get("power_watts", values.get("card_power_watts")),
        power_limit_watts=values.get("power_limit_watts"),
        firmware_limit_celsius=values.get("firmware_limit_celsius"),
        reset_celsius=values.get("reset_celsius"),
        throttle_cause=readings.words.get("throttle_cause"),
        running=server.running,
        waiting=server.waiting,
        queue_wait_s=server.queue_wait_s,
        busy_share=server.busy_share,
        prefill_tokens_per_s=server.prefill_tokens_per_s,
        decode_tokens_per_s=server.decode_tokens_per_s,
        decode_steps_per_s=server.decode_steps_per_s,
        engine_up=server.engine_up,
        alternative=server.alternative,
        draining=server.draining,
        other_duty=server.other_duty,
        levers=server.levers,
    )
