"""From a device's name to the device."""

from coldplate_engine.kernels.library import KernelMode
from coldplate_engine.runner import Device, ModelError

FORMS = "cpu, sim:ADDRESS#npu:N, or fault:PLAN,DEVICE"


def open_device(spec: str, threads: int, test_faults: bool, kernels: KernelMode = "auto") -> Device:
    """Open the device ``spec`` names. Raises ModelError with the name and the way out."""
    kind, _, rest = spec.partition(":")
    if spec == "cpu":
        from coldplate_engine.devices.cpu import CpuDevice

        return CpuDevice(threads, kernels=kernels)
    if kind == "sim":
        from coldplate_engine.devices.sim import open_sim

        return open_sim(rest, open_device("cpu", threads, test_faults, kernels))
    if kind == "fault":
        from coldplate_engine.devices.fault import FaultDevice, parse_plan

        if not test_faults:
            raise ModelError(f"--device {spec!r} fails on purpose: allowed with --test-faults only")
        plan, _, inner = rest.rpartition(",")
        if not plan:
            raise ModelError(f"--device {spec!r}: expected fault:PLAN,DEVICE, such as fault:oom@5,cpu")
        return FaultDevice(parse_plan(plan), open_device(inner, threads, test_faults, kernels))
    if kind == "npu":
        raise ModelError(
            f"--device {spec}: this version has no native NPU support; use cpu, or a simulated chip, sim:ADDRESS#{spec}"
        )
    raise ModelError(f"unknown --device {spec!r}: expected {FORMS}")
