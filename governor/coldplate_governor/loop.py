"""The control loop: once a second samples, a decision for each device, and one call to the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from coldplate.clock import Clock
from coldplate.profile import DeviceProfile
from coldplate_governor.agents import SensorAgents
from coldplate_governor.control_link import Directive
from coldplate_governor.device_log import DeviceLog
from coldplate_governor.explain.recorder import RecordCounts
from coldplate_governor.explain.scribe import Scribe
from coldplate_governor.explain.tick import Tick, ages_of
from coldplate_governor.explain.trail import Account
from coldplate_governor.fault import Fault
from coldplate_governor.feedback import DeviceFeedback
from coldplate_governor.law import PERIOD_S, Cause, Decision, Inputs, LawState, decide
from coldplate_governor.levers.control import FrequencyControl
from coldplate_governor.sensors.device import DeviceReadings, DeviceSensors
from coldplate_governor.settings import GovernedDevice
from coldplate_governor.stop import StopRequest
from coldplate_governor.suspend import SleepMeter


class Link(Protocol):
    """Where directives go."""

    def apply(self, directives: Sequence[Directive]) -> dict[str, DeviceFeedback] | None: ...


class Sleep(Protocol):
    """How long the machine has slept."""

    def slept_s(self) -> float: ...


@dataclass(slots=True)
class GovernorSnapshot:
    """What the last round did, for metrics."""

    directives: tuple[Directive, ...] = ()
    decisions: int = 0
    applied: int = 0
    period_s: float | None = None
    agent_restarts: dict[str, int] = field(default_factory=dict)
    record: RecordCounts | None = None
    clock_shares: dict[str, float] = field(default_factory=dict)  # in force, of usable frequency levers


class DeviceGovernor:
    """One device: its agent, its sensors, its frequency lever, and what was last logged of them."""

    def __init__(
        self, governed: GovernedDevice, agent: SensorAgents | None, frequency: FrequencyControl | None = None
    ) -> None:
        self.name = str(governed.device)
        self.agent = agent
        self.frequency = frequency
        self.profile = governed.profile
        self._sensors = DeviceSensors()
        self._sensor_log = DeviceLog(self.name)
        self._readings = DeviceReadings()
        self._fault = Fault("readings cannot be dealt with: the device is taken to have none")

    def observe(self, feedback: DeviceFeedback | None, now_s: float) -> Inputs:
        """Take what has come from the sensors; returns what the law is told. Never raises."""
        with self._fault.told_once(device=self.name):
            self._readings = DeviceReadings()
            self._readings = self._look(now_s)
        return _inputs(self._readings, feedback, self.frequency is not None and self.frequency.available)

    def _look(self, now_s: float) -> DeviceReadings:
        samples = self.agent.take() if self.agent else []
        for sample in samples:
            self._sensors.take(sample.sensor, sample.readings, sample.at_s)
            self._sensors.note(sample.sensor, sample.unusable)
        readings = self._sensors.fuse(now_s)
        self._sensor_log.samples(samples, readings.doubted)
        self._sensor_log.readings(readings)
        return readings

    @property
    def readings(self) -> DeviceReadings:
        """What was last observed."""
        return self._readings

    def conclude(self, decision: Decision, account: Account | None) -> Directive:
        """Act on the law's decision."""
        if self.frequency is not None:
            self.frequency.want(decision.clock_share)
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
        self._fault = Fault("a decision could not be made, or not be told: without one safe limits hold")

    def round(self, feedback: Mapping[str, DeviceFeedback], now_s: float, slept_s: float = 0.0) -> list[Directive]:
        """One decision for all of them. ``slept_s`` is how long the machine has been suspended so far."""
        inputs = {device.name: device.observe(feedback.get(device.name), now_s) for device in self.devices}
        before, at_s = self._state, now_s + slept_s
        decisions: Mapping[str, Decision] = {}
        accounts: Mapping[str, Account] = {}
        with self._fault.told_once(devices=self.name):
            self._state, decisions = decide(self._profile, before, inputs, at_s)
            accounts = self._told(Tick(self.name, self._profile, at_s, before, inputs, self._state, decisions))
        return [
            device.conclude(decisions.get(device.name) or _safe(self._profile), accounts.get(device.name))
            for device in self.devices
        ]

    def _told(self, tick: Tick) -> Mapping[str, Account]:
        seen = {device.name: device.readings for device in self.devices}
        ages = {name: ages_of(readings) for name, readings in seen.items()}
        doubted = {name: readings.doubted for name, readings in seen.items()}
        return self._scribe.note(replace(tick, ages=ages, doubted=doubted))


def run(
    heatsinks: Sequence[HeatsinkGovernor],
    link: Link,
    clock: Clock,
    stop: StopRequest,
    snapshot: GovernorSnapshot,
    first_sample_s: float = 2.5,
    clocks: Sequence[FrequencyControl] = (),
    sleep: Sleep | None = None,
) -> None:
    """Govern until ``stop`` is set. ``clocks`` are all frequency levers, those of the devices among them.

    The first decision waits up to ``first_sample_s`` for every sensor to be heard twice, so that a device is not called
    blind while its agent starts. Rounds keep to a grid of one second; a round that was late does not make the next ones
    hurry.
    """
    feedback: dict[str, DeviceFeedback] = {}
    devices = [device for heatsink in heatsinks for device in heatsink.devices]
    sleep = sleep or SleepMeter()
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
        for lever in clocks:
            lever.supervise()
        slept_s = sleep.slept_s()
        directives = tuple(item for heatsink in heatsinks for item in heatsink.round(feedback, now, slept_s))
        reply = link.apply(directives)
        feedback = feedback if reply is None else reply
        snapshot.directives = directives
        snapshot.decisions += len(directives)
        snapshot.applied += reply is not None
        snapshot.period_s = None if before is None else now - before
        snapshot.agent_restarts = {device.name: device.agent.restarts for device in devices if device.agent}
        snapshot.clock_shares = {
            lever.device: lever.in_force for lever in clocks if lever.available and lever.in_force is not None
        }
        before = now
        due = max(due + PERIOD_S, clock.now())
        stop.wait(due - clock.now())


def _safe(profile: DeviceProfile) -> Decision:
    limits = profile.safe_limits
    cause = Cause("GOVERNOR_FAULT", "the governor's law failed: safe limits hold")
    return Decision(limits, "SAFE", (cause,), 1.0 if limits.duty is None else limits.duty, "device", rule="FAULT")


def _inputs(readings: DeviceReadings, feedback: DeviceFeedback | None, frequency_levers: bool) -> Inputs:
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
        frequency_levers=frequency_levers,
    )
