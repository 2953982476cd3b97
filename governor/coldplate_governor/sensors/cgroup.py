"""``cgroup``: the memory limit this process lives under and what is used of it, for cgroup v1 and v2.

Used leaves out the page cache the kernel can take back. Without a limit there is no reading: the machine's memory
counts.
"""

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED_FROM = 2**60  # v1 says "no limit" with a huge number
_RECLAIMABLE_V2 = ("inactive_file", "active_file", "slab_reclaimable")
_RECLAIMABLE_V1 = ("total_inactive_file", "total_active_file")


class CgroupSensor:
    """Reads the hierarchy mounted at ``root``; ``membership`` says where in it this process is."""

    name = "cgroup"

    def __init__(self, root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> None:
        self._root = Path(root)
        self._membership = Path(membership)

    def read(self) -> dict[str, float]:
        tightest: tuple[float, float] | None = None
        for folder, is_v1 in self._folders():
            limit = _number(folder / ("memory.limit_in_bytes" if is_v1 else "memory.max"))
            usage = _number(folder / ("memory.usage_in_bytes" if is_v1 else "memory.current"))
            if limit is None or usage is None or not 0 < limit < _UNLIMITED_FROM:
                continue
            used = max(0.0, usage - _reclaimable(folder / "memory.stat", _RECLAIMABLE_V1 if is_v1 else _RECLAIMABLE_V2))
            if tightest is None or limit - used < tightest[0] - tightest[1]:
                tightest = (limit, used)
        if tightest is None:
            return {}
        return {"memory_total_bytes": tightest[0], "memory_used_bytes": tightest[1]}

    def _folders(self) -> Iterator[tuple[Path, bool]]:
        """From this process's own group up to the root of the mount: a limit anywhere on the way holds."""
        v1_root = self._root / "memory"
        is_v1 = v1_root.is_dir() and not (self._root / "cgroup.controllers").exists()
        root = v1_root if is_v1 else self._root
        # In a container the path may be the host's, which the mount does not show; its root is then our group.
        folder = root / self._own_path(is_v1).lstrip("/")
        while folder != root and root in folder.parents:
            if folder.is_dir():
                yield folder, is_v1
            folder = folder.parent
        yield root, is_v1

    def _own_path(self, is_v1: bool) -> str:
        try:
            lines = self._membership.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return "/"
        for line in lines:
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if ("memory" in controllers.split(",")) if is_v1 else number == "0":
                return path if ".." not in path else "/"
        return "/"


def _number(path: Path) -> float | None:
    try:
        return float(int(path.read_text().strip()))
    except (OSError, ValueError):
        return None  # absent, or "max": no limit


def _reclaimable(path: Path, keys: tuple[str, ...]) -> float:
    total = 0.0
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key in keys and value.strip().isdigit():
                total += int(value)
    except (OSError, UnicodeDecodeError):
        return 0.0
    return total
