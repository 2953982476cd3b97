"""The governor's process: settings, signals, agents, loop, and a clean end."""

import signal

import structlog

from coldplate.clock import MonotonicClock
from coldplate.device_id import DeviceId
from coldplate.logs import configure_logs
from coldplate.settings import fail, load_settings
from coldplate_governor.agents import SensorAgents
from coldplate_governor.board.client import BoardUnreachable
from coldplate_governor.control_link import ControlLink
from coldplate_governor.explain.place import open_recorder
from coldplate_governor.explain.ring import RingUnusable
from coldplate_governor.explain.scribe import Scribe
from coldplate_governor.heatsinks import heatsinks
from coldplate_governor.levers.control import FrequencyControl, end_all, restorations
from coldplate_governor.loop import DeviceGovernor, GovernorSnapshot, HeatsinkGovernor, run
from coldplate_governor.metrics import serve_metrics
from coldplate_governor.sensors.registry import grouped
from coldplate_governor.settings import GovernedDevice, GovernorSettings, count_board_chips, governed_devices
from coldplate_governor.stop import StopRequest

PROGRAM = "coldplate-governor"
_PUT_BACK_S = 3.5  # `coldplate up` gives a governor 5 s to end

log = structlog.get_logger(__name__)


def main(argv: list[str]) -> None:
    """Govern until SIGTERM or SIGINT; then exit code 0 with every sensor agent ended. Bad settings: exit code 2."""
    settings = load_settings(GovernorSettings, PROGRAM, argv)
    configure_logs("governor", settings.log_level, settings.log_format)
    stop = StopRequest()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    snapshot = GovernorSnapshot()
    try:
        chips = count_board_chips(settings.board, stop) if settings.board else 0
        governed = governed_devices(settings, chips)
        groups = heatsinks(governed, settings.heatsink)
    except BoardUnreachable as error:
        fail(PROGRAM, f"board: {error}; start coldplate-board first")
    except ValueError as error:
        fail(PROGRAM, str(error))
    if settings.metrics_listen:
        try:
            serve_metrics(settings.metrics_listen, snapshot)
        except (OSError, OverflowError) as error:
            fail(PROGRAM, f"metrics-listen {settings.metrics_listen}: {error}")
    govern(settings, groups, stop, snapshot)


def govern(
    settings: GovernorSettings, groups: list[list[GovernedDevice]], stop: StopRequest, snapshot: GovernorSnapshot
) -> None:
    """Run the loop over the devices of each heatsink until ``stop`` is set. Ends what it started."""
    clock = MonotonicClock()
    devices: dict[DeviceId, DeviceGovernor] = {}
    for item in (item for group in groups for item in group):
        agent = None
        if item.sensors:
            agent = SensorAgents(
                str(item.device),
                grouped(item.sensors),
                clock,
                settings.sensor_interval_s,
                settings.sensor_deadline_s,
            )
        elif item.device.kind == "npu":
            log.warning(
                "no sensor for a device: its safe limits hold",
                device=str(item.device),
                do="give one with --sensor, or mount npu-smi or libdcmi where the governor runs",
            )
        frequency = None
        if item.frequency is not None:
            frequency = FrequencyControl(str(item.device), item.frequency, settings.frequency_state, clock)
        devices[item.device] = DeviceGovernor(item, agent, frequency)
    levers = [device.frequency for device in devices.values() if device.frequency is not None]
    levers += restorations(settings.frequency_state, [(lever.device, lever.lever) for lever in levers], clock)
    link = ControlLink(settings.control, settings.name, settings.lease_s)
    try:
        recorder = open_recorder(settings.record, settings.record_size_mib, settings.name, link.epoch)
    except (RingUnusable, OSError) as error:
        fail(PROGRAM, f"record: {error}")
    snapshot.record = recorder.counts if recorder else None
    scribe = Scribe(recorder)
    governors = [HeatsinkGovernor([devices[item.device] for item in group], scribe) for group in groups]
    log.info(
        "ready",
        control=settings.control,
        devices=", ".join(device.name for device in devices.values()),
        epoch=link.epoch,
    )
    try:
        run(governors, link, clock, stop, snapshot, clocks=levers)
    finally:
        end_all(levers, clock, _PUT_BACK_S)
        for device in devices.values():
            if device.agent:
                device.agent.end()
        for device in devices.values():
            if device.agent:
                device.agent.close()
        link.close()
        if recorder:
            recorder.close()
    log.info("stopped")
