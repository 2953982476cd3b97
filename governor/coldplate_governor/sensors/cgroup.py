"""``cgroup``: the memory limit this process lives under and what is used of it.

Used leaves out the page cache the kernel can take back. Without a limit there is no reading: the machine's memory
counts.
"""

from pathlib import Path

from coldplate.cgroup import MEMBERSHIP, ROOT, Cgroup


class CgroupSensor:
    """Reads the hierarchy mounted at ``root``; ``membership`` says where in it this process is."""

    name = "cgroup"

    def __init__(self, root: str = str(ROOT), membership: str = str(MEMBERSHIP)) -> None:
        self._cgroup = Cgroup(Path(root), Path(membership))

    def read(self) -> dict[str, float]:
        memory = self._cgroup.memory()
        if memory is None:
            return {}
        available, limit = memory
        return {"memory_total_bytes": float(limit), "memory_used_bytes": float(limit - available)}
