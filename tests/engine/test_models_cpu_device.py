"""The CPU device: errors, memory, chip name, dtype and threads."""

import threading
from pathlib import Path

import pytest
import torch

from coldplate.cgroup import Cgroup
from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.devices.cpu import CpuDevice
from coldplate_engine.step_timer import StepTimer
from support import checkpoints

NPU_FAULT = "The Inner error is reported. NPU function error: aclrtSynchronizeStream, error code is %s\n[ERROR] x"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("no room"), "oom"),
        (MemoryError(), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: ..."), "oom"),
        (RuntimeError("NPU out of memory. Tried to allocate 22.00 MiB (NPU 0; 21.02 GiB total capacity)"), "oom"),
        (RuntimeError(NPU_FAULT % "207018"), "oom"),
        (RuntimeError(NPU_FAULT % "507035"), "restart"),
        (RuntimeError(NPU_FAULT % "507018"), "restart"),
        (RuntimeError(NPU_FAULT % "507899"), "restart"),
        (RuntimeError(NPU_FAULT % "107002"), "bug"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "bug"),
        (IndexError("index out of range in self"), "bug"),
        (ValueError("error code is 507035"), "bug"),
    ],
)
def test_errors_are_sorted(error: BaseException, kind: str) -> None:
    fault = CpuDevice(threads=1).classify(error)
    assert fault.kind == kind
    assert fault.text
    assert "\n" not in fault.text


def test_a_real_allocation_failure_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert CpuDevice(threads=1).classify(caught.value).kind == "oom"


def test_memory_obeys_the_control_group(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    device = CpuDevice(threads=1, cgroup=Cgroup(tmp_path, tmp_path / "membership"))
    assert device.memory() == (600000, 1000000)


def test_memory_of_the_machine(tmp_path: Path) -> None:
    available, total = CpuDevice(threads=1, cgroup=Cgroup(tmp_path, tmp_path / "membership")).memory()
    assert 0 < available <= total


@pytest.mark.parametrize(
    ("flags", "dtype"), [("fpu avx2", "float32"), ("fpu avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16")]
)
def test_auto_dtype_without_kernels_follows_the_processor(tmp_path: Path, flags: str, dtype: str) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nmodel name\t: Test CPU 9000\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    device = CpuDevice(threads=1, cpu_info=info, kernels="off")
    assert device.chip == "Test CPU 9000"
    model = checkpoints.script((5, 6)).path
    assert device.load(model, "auto", None, lambda _phase, _share: None).facts.dtype == dtype


def test_a_machine_without_cpuinfo(tmp_path: Path) -> None:
    assert CpuDevice(threads=1, cpu_info=tmp_path / "absent").chip == "cpu"


@pytest.mark.parametrize(("share", "threads"), [(1.0, 2), (0.5, 1), (0.01, 1), (7.0, 2)])
def test_cpu_share_holds_on_the_thread_that_computes(share: float, threads: int) -> None:
    device = CpuDevice(threads=2)
    model = checkpoints.script((5, 6)).path
    runner = device.load(model, "float32", None, lambda _phase, _share: None)
    runner.allocate_kv(2, 16)
    device.set_cpu_share(share)
    seen: list[int] = []

    def compute() -> None:
        runner.execute(StepBatch([StreamSlice(0, [9, 9, 9], 0, [1], 1)]), StepTimer())
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert seen == [threads]


def test_a_scripted_model_says_its_script() -> None:
    answer = (65, 66, 66, 65, 200, 7)
    model = checkpoints.script(answer, prompt_tokens=5).path
    runner = CpuDevice(threads=1).load(model, "float32", None, lambda _phase, _share: None)
    runner.allocate_kv(8, 4)
    table = [6, 1, 3]
    fed, start, said = [9] * 5, 0, []
    for _ in answer:
        row = runner.execute(StepBatch([StreamSlice(0, fed, start, table, 1)]), StepTimer())[0]
        start += len(fed)
        fed = [int(row.argmax())]
        said += fed
    assert tuple(said) == answer
