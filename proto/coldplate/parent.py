"""Ending with the process that started this one, however that one ends."""

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "COLDPLATE_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Have the kernel send ``number`` to this process when its parent ends, even by SIGKILL. Linux only; else nothing.

    The kernel watches the thread that started this process, so a starter must keep that thread.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(0)  # it ended before we asked


def end_with_supervisor() -> None:
    """End with the supervisor that names itself in ``COLDPLATE_PARENT_PID``, as if it had sent SIGTERM."""
    if (parent := os.environ.get(PARENT_VARIABLE, "")).isdigit():
        end_with_parent(int(parent), signal.SIGTERM)
