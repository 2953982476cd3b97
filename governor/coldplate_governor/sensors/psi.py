"""``psi``: pressure stall information: the share of the last 10 s in which some task waited for memory or processor."""

import re
from pathlib import Path

_SOME = re.compile(r"^some\s+avg10=(\d+(?:\.\d+)?)\b", re.MULTILINE)


class PsiSensor:
    """Reads ``memory`` and ``cpu`` (or a cgroup's ``memory.pressure`` and ``cpu.pressure``) in ``folder``."""

    name = "psi"

    def __init__(self, folder: str = "/proc/pressure") -> None:
        self._folder = Path(folder)

    def read(self) -> dict[str, float]:
        readings = {}
        for resource in ("memory", "cpu"):
            value = self._some(resource)
            if value is not None:
                readings[f"{resource}_pressure_percent"] = value
        return readings

    def _some(self, resource: str) -> float | None:
        for name in (resource, f"{resource}.pressure"):
            try:
                found = _SOME.search((self._folder / name).read_text())
            except (OSError, UnicodeDecodeError):
                continue  # a kernel without it, or one that has it switched off
            if found:
                return float(found[1])
        return None
