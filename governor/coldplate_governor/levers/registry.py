"""Frequency levers by name. A new lever is a new file beside the others and one entry here."""

from collections.abc import Callable
from dataclasses import dataclass

from coldplate.device_id import DeviceId
from coldplate_governor.levers.base import FrequencyLever
from coldplate_governor.levers.cpufreq import ROOT, CpufreqLever
from coldplate_governor.levers.hook import NO_SET_FREQ, HookLever
from coldplate_governor.levers.work_level import make_work_level


@dataclass(frozen=True, slots=True)
class LeverKind:
    """The kind of device it is for (None: any), how to make it from its argument, and what the argument is."""

    device_kind: str | None
    make: Callable[[DeviceId, str | None], FrequencyLever]
    argument: str


LEVERS: dict[str, LeverKind] = {
    "work-level": LeverKind(
        "npu", lambda device, argument: make_work_level(device.index or 0, argument), "8T, 20T or path of npu-smi"
    ),
    "cpufreq": LeverKind("cpu", lambda _, root: CpufreqLever(root or ROOT), f"folder like {ROOT}"),
    "hook": LeverKind(None, lambda _, command: HookLever(command or ""), "command"),
}


def make_lever(device: DeviceId, spec: str) -> FrequencyLever:
    """Make the lever ``NAME`` or ``NAME=ARGUMENT`` for ``device``. Raises ValueError with what is expected."""
    name, equals, argument = spec.partition("=")
    kind = LEVERS.get(name)
    if kind is None:
        what = NO_SET_FREQ if "set-freq" in spec else f"expected one of {', '.join(LEVERS)}"
        raise ValueError(f"unknown frequency lever {spec[:80]!r}: {what}")
    if kind.device_kind not in (None, device.kind):
        raise ValueError(f"frequency lever {name!r} is not for {device}: it is for {kind.device_kind} devices")
    try:
        return kind.make(device, argument if equals else None)
    except ValueError as error:
        raise ValueError(f"frequency lever {name!r}: {error}") from error
