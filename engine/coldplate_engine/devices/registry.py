"""From a device's name to the device."""

from coldplate.device_id import MODELLED, split_modelled
from coldplate_engine.kernels.library import KernelMode
from coldplate_engine.runner import Device, ModelError

FORMS = "cpu, sim:ADDRESS#npu:N, sim:ADDRESS#npu:N,modelled, or fault:PLAN,DEVICE"


def open_device(spec: str, threads: int, test_faults: bool, kernels: KernelMode = "auto") -> Device:
    """Open the device ``spec`` names. Raises ModelError with the name and the way out."""
    kind, _, rest = spec.partition(":")
    if spec == "cpu":
        from coldplate_engine.devices.cpu import CpuDevice

        return CpuDevice(threads, kernels=kernels)
    if kind == "sim":
        from coldplate_engine.devices.sim import open_sim

        chip, modelled_as = split_modelled(rest)
        if modelled_as is None:
            return open_sim(chip, open_device("cpu", threads, test_faults, kernels))
        from coldplate_engine.devices.modelled import open_modelled

        return open_modelled(chip, modelled_as)
    if kind == "fault":
        from coldplate_engine.devices.fault import FaultDevice, parse_plan

        if not test_faults:
            raise ModelError(f"--device {spec!r} fails on purpose: allowed with --test-faults only")
        rest, modelled_as = split_modelled(rest)
        plan, _, inner = rest.rpartition(",")
        if modelled_as is not None:
            inner += f",{MODELLED}={modelled_as}"
        if not plan:
            raise ModelError(f"--device {spec!r}: expected fault:PLAN,DEVICE, such as fault:oom@5,cpu")
        return FaultDevice(parse_plan(plan), open_device(inner, threads, test_faults, kernels))
    if kind == "npu":
        raise ModelError(
            f"--device {spec}: this version has no native NPU support; use cpu, or a simulated chip, sim:ADDRESS#{spec}"
        )
    raise ModelError(f"unknown --device {spec!r}: expected {FORMS}")
