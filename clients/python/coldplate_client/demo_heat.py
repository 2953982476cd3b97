"""The part of the demo in which the simulated board gets hot, and the governor stays ahead of its firmware."""

import sys
import time
from dataclasses import dataclass

from coldplate.limits_proto import limits_from_proto
from coldplate.profile import DeviceProfile, load_profile
from coldplate.v1 import device_pb2
from coldplate_client.cli.console import CliFailure, out
from coldplate_client.client import Client
from coldplate_client.demo_load import Load
from coldplate_client.up import Stack

DEVICE = "npu:0"
_RISING = ((1, 4.0), (2, 4.0), (8, 16.0))  # streams, and for how many seconds
_BAR_FROM_CELSIUS = 72  # one cell for each degree above


@dataclass(slots=True)
class _Seen:
    """What the governor and the board came to. ``firmware_events`` are clock cuts the firmware made by itself."""

    hottest_celsius: float = 0.0
    least_duty: float = 1.0
    firmware_events: int = 0


def show_heat(stack: Stack, client: Client) -> None:
    """Let the load rise on a board that started warm. Raises CliFailure when the governor comes too late."""
    from coldplate_governor.board.client import BoardClient

    profile = load_profile(stack.plan.board_profiles().get(DEVICE, "310p-duo"))
    heat = profile.temperature
    out.print(
        f"The board started warm. The governor holds {heat.target_celsius:g} °C (>); at "
        f"{heat.firmware_cliff_celsius:g} °C (!) the firmware would halve the clock. Every temperature is simulated.",
        markup=False,
    )
    seen = _Seen()
    with BoardClient(stack.plan.board_address) as board, Load(client) as load:
        before = int(board.read(0)["firmware_throttle_events"])
        began = time.monotonic()
        for streams, seconds in _RISING:
            load.keep(streams)
            _watch(stack, client, profile, began, seconds, seen)
        seen.firmware_events = int(board.read(0)["firmware_throttle_events"]) - before
    out.print(
        f"Hottest {seen.hottest_celsius:.0f} °C, duty down to {seen.least_duty:.0%}, "
        f"{seen.firmware_events or 'no'} clock cuts by the firmware.",
        markup=False,
    )
    if seen.firmware_events:
        raise CliFailure("the firmware cut the clock: the governor was too late")


def _watch(stack: Stack, client: Client, profile: DeviceProfile, began: float, seconds: float, seen: _Seen) -> None:
    end = time.monotonic() + seconds
    with client.watch_status(DEVICE, min_interval_s=1.0) as updates:
        for status in updates:
            if stack.failure:
                raise stack.failure
            for device in status.devices:
                _note(device, profile, time.monotonic() - began, seen)
            if time.monotonic() >= end:
                return


def _note(device: device_pb2.DeviceStatus, profile: DeviceProfile, at_s: float, seen: _Seen) -> None:
    duty = limits_from_proto(device.limits).duty
    duty = 1.0 if duty is None else duty
    known = device.readings.HasField("temperature_celsius")
    celsius = device.readings.temperature_celsius
    if known:
        seen.hottest_celsius = max(seen.hottest_celsius, celsius)
    seen.least_duty = min(seen.least_duty, duty)
    shown = f"{celsius:3.0f} °C {_bar(celsius, profile)}" if known else "  - °C"
    sys.stdout.write(
        f"{at_s:3.0f} s  {device.running:2} streams  {device.tokens_per_second:5.0f} tokens/s  {shown}"
        f"  duty {duty:4.0%}  {device.governor_mode or '-'}\n"
    )
    sys.stdout.flush()


def _bar(celsius: float, profile: DeviceProfile) -> str:
    """A thermometer: filled up to the reading, with the target and the firmware's cliff marked."""
    heat = profile.temperature
    width = round(heat.firmware_cliff_celsius + 3 - _BAR_FROM_CELSIUS)
    filled = round(celsius - _BAR_FROM_CELSIUS)
    cells = ["#" if cell < filled else "." for cell in range(width)]
    for mark, at in ((">", heat.target_celsius), ("!", heat.firmware_cliff_celsius)):
        cells[min(width - 1, max(0, round(at - _BAR_FROM_CELSIUS)))] = mark
    return f"[{''.join(cells)}]"
