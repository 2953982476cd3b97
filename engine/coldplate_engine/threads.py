"""How many threads to compute with."""

import os
from collections.abc import Mapping, MutableMapping

from coldplate.cgroup import Cgroup


def compute_threads(cgroup: Cgroup, environment: Mapping[str, str], allowed_cpus: int) -> int:
    """Threads for matrix work, at least 1.

    ``OMP_NUM_THREADS`` wins, as it is what a user set on purpose. Otherwise the CPUs this process may run on, cut to
    the control group's CPU quota rounded down: a thread beyond the quota is stalled, and all wait for the slowest.
    """
    chosen = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    quota = cgroup.cpu_quota()
    return max(1, allowed_cpus if quota is None else min(allowed_cpus, int(quota)))


def default_threads() -> int:
    """``compute_threads`` of this process."""
    return compute_threads(Cgroup(), os.environ, _allowed_cpus())


def let_waiting_threads_sleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make OpenMP's threads sleep where they wait for each other, unless the user chose a policy.

    By default they spin, which takes the cores from the server beside the worker: on two busy cores a step took two to
    four times as long. Call before torch is imported: OpenMP reads it once, as it is loaded.
    """
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _allowed_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
