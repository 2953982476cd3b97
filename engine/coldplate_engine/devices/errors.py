"""What an error raised while computing means for the worker."""

import re

import torch

from coldplate_engine.runner import Fault

OOM, RESTART, BUG = "oom", "restart", "bug"

_OOM_TEXTS = (
    "can't allocate memory",  # DefaultCPUAllocator
    "not enough memory",  # DefaultCPUAllocator on Windows and macOS
    "out of memory",  # "NPU out of memory", "CUDA out of memory"
    "NPUWorkspaceAllocator tried to allocate",
    "Failed to allocate",
    "EL0004",
)
# torch-npu: "... NPU function error: <api>, error code is NNNNNN". Numbers: CANN's acl/error_codes/rt_error_codes.h.
_ERROR_CODE = re.compile(r"error code is (\d{6})")
_OOM_CODES = ("200000", "207001", "207018")
_RESTART_CODES = ("107019", "107020", "507899", "507901")  # time-outs; driver error, host-device link lost
_RESTART_PREFIX = "5070"  # the device's own faults: the context is poisoned, only a new process gets a clean one
_TEXT_LIMIT = 300


def classify_error(error: BaseException) -> Fault:
    """Sort an error: "oom" (shrink and retry), "restart" (replace the process) or "bug" (fail what was running)."""
    full = str(error)
    first_line = full.strip().splitlines()[0] if full.strip() else ""
    text = (first_line or type(error).__name__)[:_TEXT_LIMIT]
    codes = _ERROR_CODE.findall(full)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return Fault(OOM, text)
    if isinstance(error, RuntimeError):
        if any(code.startswith(_RESTART_PREFIX) or code in _RESTART_CODES for code in codes):
            return Fault(RESTART, text)
        if any(code in _OOM_CODES for code in codes) or any(part in full for part in _OOM_TEXTS):
            return Fault(OOM, text)
    return Fault(BUG, text)
