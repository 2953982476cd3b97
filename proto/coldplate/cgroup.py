"""CPU and memory limits of the control group this process runs in, v1 and v2.

A limit of any ancestor binds too. In a container the membership file may name a path that only the host sees; the
ancestors, up to the mounted root, are then what is left and what binds.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_NO_LIMIT_V1 = 1 << 60  # v1 says "no limit" with a number near 2^63


class Cgroup:
    """Reads limits anew at each call: they may change under a running process."""

    def __init__(self, root: Path = ROOT, membership: Path = MEMBERSHIP) -> None:
        self._root, self._membership = root, membership

    def cpu_quota(self) -> float | None:
        """CPUs' worth of time this process may use, None for no limit."""
        quotas = []
        for folder in self._folders("cpu"):
            quota = _quota(folder)
            if quota is not None:
                quotas.append(quota)
        return min(quotas, default=None)

    def memory(self) -> tuple[int, int] | None:
        """(available, limit) in bytes of the tightest limit, None for no limit.

        File cache that the kernel can drop counts as available.
        """
        tightest: tuple[int, int] | None = None
        for folder in self._folders("memory"):
            found = _memory(folder)
            if found is not None and (tightest is None or found[0] < tightest[0]):
                tightest = found
        return tightest

    def _folders(self, controller: str) -> Iterator[Path]:
        """This process's groups of a controller and their ancestors, and the mounted root whatever the file says."""
        yield self._root
        for line in _text(self._membership).splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers == "":
                yield from _ancestors(self._root, path)
            elif controller in controllers.split(","):
                yield from _ancestors(self._root / controller, path)


def _ancestors(root: Path, path: str) -> Iterator[Path]:
    parts = PurePosixPath(path).parts[1:]
    if ".." in parts:  # outside of what is mounted here
        parts = ()
    for count in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:count])


def _quota(folder: Path) -> float | None:
    v2 = _text(folder / "cpu.max").split()
    if len(v2) == 2 and v2[0].isdigit() and v2[1].isdigit() and int(v2[1]):
        return int(v2[0]) / int(v2[1])
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    if quota is not None and quota > 0 and period:
        return quota / period
    return None


def _memory(folder: Path) -> tuple[int, int] | None:
    for limit_file, usage_file, reclaimable in (
        ("memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    ):
        limit, usage = _number(folder / limit_file), _number(folder / usage_file)
        if limit is None or usage is None or not 0 < limit < _NO_LIMIT_V1:
            continue
        used = usage - sum(_statistics(folder / "memory.stat", reclaimable))
        return limit - min(limit, max(0, used)), limit
    return None


def _statistics(path: Path, keys: tuple[str, ...]) -> Iterator[int]:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key in keys and value.strip().isdigit():
            yield int(value)


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.removeprefix("-").isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
