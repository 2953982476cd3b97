"""A tree of files as the kernel has them for the clocks of processors."""

from collections.abc import Mapping
from pathlib import Path


def make_cpufreq(folder: Path, policies: Mapping[str, tuple[int, int]]) -> Path:
    """``policies``: slowest and fastest clock in kHz by name. Returns what ``cpufreq=`` takes."""
    root = folder / "cpu"
    for name, (slowest, fastest) in policies.items():
        policy = root / "cpufreq" / name
        policy.mkdir(parents=True)
        (policy / "cpuinfo_min_freq").write_text(f"{slowest}\n")
        (policy / "cpuinfo_max_freq").write_text(f"{fastest}\n")
        (policy / "scaling_max_freq").write_text(f"{fastest}\n")
    return root


def limits_khz(root: Path) -> dict[str, int]:
    """What each policy is limited to now; -1 in the moment in which it is being written."""
    return {path.parent.name: int(path.read_text() or -1) for path in root.glob("cpufreq/policy*/scaling_max_freq")}
