"""No segment of vLLM's shared memory outlives its processes, however they end."""

import contextlib
import re
from pathlib import Path

import psutil

# As multiprocessing names them, mapped by a process.
_SEGMENT = re.compile(r"(/dev/shm/psm_\w+)$", re.MULTILINE)


def unname_shared_memory() -> list[Path]:
    """Remove the names of the segments that this process and its descendants have mapped; returns them.

    Call when every process has opened what it shares: what is mapped stays, and the kernel frees it with the last that
    has it. Otherwise a group that is killed leaves its queues in memory, over a hundred megabytes a time.
    """
    found: set[str] = set()
    process = psutil.Process()
    for member in (process, *process.children(recursive=True)):
        with contextlib.suppress(OSError):
            found |= set(_SEGMENT.findall(Path(f"/proc/{member.pid}/maps").read_text()))
    removed = []
    for path in map(Path, sorted(found)):
        with contextlib.suppress(OSError):
            path.unlink()
            removed.append(path)
    return removed
