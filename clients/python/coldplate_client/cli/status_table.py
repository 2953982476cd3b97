"""A service's status as a table for people."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from coldplate.durations import to_seconds
from coldplate.limits_proto import limits_from_proto
from coldplate.v1 import device_pb2

_WIDE = 100
_STYLES = {"SERVING": "green", "THROTTLED": "yellow", "LOADING": "cyan", "DRAINING": "cyan"}


def status_view(status: device_pb2.ServiceStatus, width: int) -> Group:
    """The whole status: a line about the service, a table of devices, and why they are as they are.

    The limits are a column where ``width``, in characters, leaves room for it, else lines under the table.
    """
    wide = width >= _WIDE
    below = []
    for device in status.devices:
        limits = limits_text(device)
        if not wide and limits != "none":
            below.append(Text(f"{device.device}: limits: {limits}", no_wrap=False, overflow="fold"))
        below += [
            Text(f"{device.device}: {note}", style="dim", no_wrap=False, overflow="fold")
            for note in notes(status, device)
        ]
    return Group(
        Text(service_line(status), no_wrap=False, overflow="fold"), device_table(list(status.devices), wide), *below
    )


def device_table(devices: list[device_pb2.DeviceStatus], wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("device", "state", "temp"):
        table.add_column(heading)
    for heading in ("running", "tokens/s"):
        table.add_column(heading, justify="right")
    if wide:
        table.add_column("limits in force (set by)", overflow="fold")
        table.add_column("governor")
    for device in devices:
        state = state_name(device.state)
        cells: list[str | Text] = [
            device.device + (" (simulated)" if device.simulated else ""),
            Text(state, style=_STYLES.get(state, "red")),
            _temperature(device.readings),
            str(device.running),
            f"{device.tokens_per_second:.1f}",
        ]
        table.add_row(*cells, *([limits_text(device), device.governor_mode or "-"] if wide else []))
    return table


def notes(status: device_pb2.ServiceStatus, device: device_pb2.DeviceStatus) -> list[str]:
    """Why the device is as it is: its state where that is more than its limits, and the governor's reasons."""
    totals = device.totals
    found = []
    if totals.cached_tokens or totals.preemptions:
        looked_up = totals.cached_tokens + totals.prefill_tokens
        found.append(
            f"prefix cache held {totals.cached_tokens} of {looked_up} prompt tokens; {totals.preemptions} preemptions"
        )
    found += [device.detail] if device.detail and device.state != device_pb2.DEVICE_STATE_THROTTLED else []
    found += void_limits(device)
    if status.governor.state == device_pb2.GOVERNOR_STATE_GOVERNED:
        found += [f"governor: {device.governor_mode}: {reason.text}" for reason in device.reasons]
    return found


def service_line(status: device_pb2.ServiceStatus) -> str:
    governor = device_pb2.GovernorState.Name(status.governor.state).removeprefix("GOVERNOR_STATE_").lower()
    if status.governor.state == device_pb2.GOVERNOR_STATE_GOVERNED:
        governor += f" by {status.governor.name}, lease {to_seconds(status.governor.lease_left):.1f} s"
    elif status.governor.state == device_pb2.GOVERNOR_STATE_LOST:
        governor = "no governor holds the lease: safe limits hold"
    drained = ", draining" if status.draining else ""
    return f"queued {status.queued}, running {status.running}{drained}; {governor}"


def status_lines(status: device_pb2.ServiceStatus) -> list[str]:
    """The same in plain lines, for what is no terminal."""
    lines = [service_line(status)]
    for device in status.devices:
        simulated = " (simulated)" if device.simulated else ""
        parts = [state_name(device.state)]
        if device.readings.HasField("temperature_celsius"):
            parts.append(_temperature(device.readings))
        parts += [f"running {device.running}", f"{device.tokens_per_second:.1f} tokens/s"]
        lines.append(f"  {device.device}{simulated}: {', '.join(parts)}, limits: {limits_text(device)}")
        lines += [f"    {note}" for note in notes(status, device)]
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


def void_limits(device: device_pb2.DeviceStatus) -> list[str]:
    """Limits in force that change nothing on this device."""
    names = limits_from_proto(device.limits).set_fields()
    return [f"{name} is not honoured by this device: it changes nothing" for name in names if _is_void(device, name)]


def _is_void(device: device_pb2.DeviceStatus, name: str) -> bool:
    return bool(device.levers) and name not in device.levers


def state_name(state: int) -> str:
    known = state in device_pb2.DeviceState.values()
    return device_pb2.DeviceState.Name(state).removeprefix("DEVICE_STATE_") if known else str(state)


def _temperature(readings: device_pb2.Readings) -> str:
    return f"{readings.temperature_celsius:.1f} °C" if readings.HasField("temperature_celsius") else "-"


def _value(name: str, value: object) -> str:
    if name in {"duty", "cpu_share"} and isinstance(value, float):
        return f"{100 * value:.0f} %"
    return {True: "yes", False: "no"}.get(value, "") if isinstance(value, bool) else str(value)
