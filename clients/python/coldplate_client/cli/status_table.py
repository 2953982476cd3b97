"""A service's status as a table for people."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from coldplate.durations import to_seconds
from coldplate.limits_proto import limits_from_proto
from coldplate.v1 import device_pb2

_STYLES = {"SERVING": "green", "THROTTLED": "yellow", "LOADING": "cyan", "DRAINING": "cyan"}


def status_view(status: device_pb2.ServiceStatus) -> Group:
    """The whole status: a table of devices under a line about the service."""
    notes = [Text(f"{device.device}: {device.detail}", style="dim") for device in status.devices if device.detail]
    return Group(Text(service_line(status)), device_table(list(status.devices)), *notes)


def device_table(devices: list[device_pb2.DeviceStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("device", "state", "temp"):
        table.add_column(heading)
    for heading in ("running", "tokens/s"):
        table.add_column(heading, justify="right")
    table.add_column("limits in force (set by)", overflow="fold")
    table.add_column("governor")
    for device in devices:
        state = state_name(device.state)
        table.add_row(
            device.device + (" (simulated)" if device.simulated else ""),
            Text(state, style=_STYLES.get(state, "red")),
            _temperature(device.readings),
            str(device.running),
            f"{device.tokens_per_second:.1f}",
            limits_text(device),
            device.governor_mode or "-",
        )
    return table


def service_line(status: device_pb2.ServiceStatus) -> str:
    governor = device_pb2.GovernorState.Name(status.governor.state).removeprefix("GOVERNOR_STATE_").lower()
    if status.governor.state == device_pb2.GOVERNOR_STATE_GOVERNED:
        governor += f" by {status.governor.name}, lease {to_seconds(status.governor.lease_left):.1f} s"
    drained = ", draining" if status.draining else ""
    return f"queued {status.queued}, running {status.running}{drained}; {governor}"


def status_lines(status: device_pb2.ServiceStatus) -> list[str]:
    """The same in plain lines, for what is no terminal."""
    lines = [service_line(status)]
    lines += [
        f"  {device.device}{' (simulated)' if device.simulated else ''}: {state_name(device.state)}, "
        f"{_temperature(device.readings)}, running {device.running}, {device.tokens_per_second:.1f} tokens/s, "
        f"limits: {limits_text(device)}"
        for device in status.devices
    ]
    return lines


def limits_text(device: device_pb2.DeviceStatus) -> str:
    """What is limited now and who binds, such as ``duty 60 % (governor)``."""
    sources = {
        binding.limit: device_pb2.LimitSource.Name(binding.source).removeprefix("LIMIT_SOURCE_").lower()
        for binding in device.bindings
    }
    parts = [
        f"{name} {_value(name, value)} ({sources.get(name, 'unknown')})"
        for name, value in limits_from_proto(device.limits).set_fields().items()
    ]
    return ", ".join(parts) or "none"


def state_name(state: int) -> str:
    known = state in device_pb2.DeviceState.values()
    return device_pb2.DeviceState.Name(state).removeprefix("DEVICE_STATE_") if known else str(state)


def _temperature(readings: device_pb2.Readings) -> str:
    return f"{readings.temperature_celsius:.1f} °C" if readings.HasField("temperature_celsius") else "-"


def _value(name: str, value: object) -> str:
    if name in {"duty", "cpu_share"} and isinstance(value, float):
        return f"{100 * value:.0f} %"
    return {True: "yes", False: "no"}.get(value, "") if isinstance(value, bool) else str(value)
