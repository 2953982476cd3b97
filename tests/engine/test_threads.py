"""Thread counts and memory limits from control groups, on fake files."""

from pathlib import Path

import pytest

from coldplate.cgroup import Cgroup
from coldplate_engine.threads import compute_threads, default_threads, let_waiting_threads_sleep

GIB = 1 << 30


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def cgroup(tmp_path: Path, membership: str, files: dict[str, str]) -> Cgroup:
    put(tmp_path, {"membership": membership, **{f"cgroup/{name}": text for name, text in files.items()}})
    return Cgroup(tmp_path / "cgroup", tmp_path / "membership")


V1 = "4:memory:/pod\n2:cpu,cpuacct:/pod\n"


@pytest.mark.parametrize(
    ("membership", "files", "threads"),
    [
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),
        ("0::/seen/by/the/host\n", {"cpu.max": "200000 100000\n"}, 2),
        (V1, {"cpu/pod/cpu.cfs_quota_us": "-1\n", "cpu/pod/cpu.cfs_period_us": "100000\n"}, 8),
        (V1, {"cpu/pod/cpu.cfs_quota_us": "250000\n", "cpu/pod/cpu.cfs_period_us": "100000\n"}, 2),
        (V1, {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ("0::/\n", {}, 8),
    ],
)
def test_quota_cuts_threads(tmp_path: Path, membership: str, files: dict[str, str], threads: int) -> None:
    assert compute_threads(cgroup(tmp_path, membership, files), {}, allowed_cpus=8) == threads


def test_affinity_is_the_ceiling(tmp_path: Path) -> None:
    group = cgroup(tmp_path, "0::/\n", {"cpu.max": "400000 100000\n"})
    assert compute_threads(group, {}, allowed_cpus=1) == 1


@pytest.mark.parametrize(("text", "threads"), [("1", 1), ("6,2", 6), ("0", 2), ("many", 2), ("", 2)])
def test_a_usable_omp_num_threads_wins(tmp_path: Path, text: str, threads: int) -> None:
    group = cgroup(tmp_path, "0::/\n", {"cpu.max": "200000 100000\n"})
    assert compute_threads(group, {"OMP_NUM_THREADS": text}, allowed_cpus=8) == threads


def test_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert default_threads() == 5
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert default_threads() >= 1


def test_waiting_threads_sleep_unless_the_user_chose() -> None:
    environment = {"HOME": "/"}
    let_waiting_threads_sleep(environment)
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
    environment["OMP_WAIT_POLICY"] = "ACTIVE"
    let_waiting_threads_sleep(environment)
    assert environment["OMP_WAIT_POLICY"] == "ACTIVE"


def test_memory_v2_leaves_out_droppable_file_cache(tmp_path: Path) -> None:
    files = {
        "memory.max": f"{GIB}\n",
        "memory.current": f"{GIB - 100}\n",
        "memory.stat": "anon 5\ninactive_file 1000\n",
    }
    assert cgroup(tmp_path, "0::/\n", files).memory() == (1100, GIB)


def test_memory_v1(tmp_path: Path) -> None:
    files = {
        "memory/pod/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.limit_in_bytes": f"{GIB}\n",
        "memory/memory.usage_in_bytes": "24\n",
    }
    assert cgroup(tmp_path, V1, files).memory() == (GIB - 24, GIB)


def test_no_memory_limit(tmp_path: Path) -> None:
    assert cgroup(tmp_path, "0::/\n", {"memory.max": "max\n"}).memory() is None


def test_no_cgroup_at_all(tmp_path: Path) -> None:
    group = Cgroup(tmp_path / "absent", tmp_path / "absent-too")
    assert group.memory() is None
    assert group.cpu_quota() is None
