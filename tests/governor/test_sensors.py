"""Sensors of the host on made-up file trees, and sensors by name."""

from pathlib import Path

import psutil
import pytest

from coldplate.device_id import DeviceId
from coldplate_governor.sensors.base import SensorError
from coldplate_governor.sensors.cgroup import CgroupSensor
from coldplate_governor.sensors.host import PsutilSensor
from coldplate_governor.sensors.hwmon import HwmonSensor
from coldplate_governor.sensors.psi import PsiSensor
from coldplate_governor.sensors.registry import grouped, make_sensor

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_the_first_processor_reading_is_absent() -> None:
    sensor = PsutilSensor()
    first, second = sensor.read(), sensor.read()
    assert "utilization_percent" not in first
    assert "utilization_percent" in second
    assert 0 < first["memory_used_bytes"] < first["memory_total_bytes"]


def test_a_failing_psutil_is_a_sensor_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(psutil, "virtual_memory", fail)
    with pytest.raises(SensorError, match=r"/proc/meminfo"):
        PsutilSensor().read()


def test_hwmon_takes_the_hottest_plausible_input_of_the_processor(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "hwmon/hwmon0/name": "nvme\n",
            "hwmon/hwmon0/temp1_input": "99000\n",
            "hwmon/hwmon1/name": "coretemp\n",
            "hwmon/hwmon1/temp1_input": "61000\n",
            "hwmon/hwmon1/temp2_input": "63500\n",
            "hwmon/hwmon1/temp3_input": "0\n",
            "hwmon/hwmon1/temp4_input": "3892314000\n",
            "hwmon/hwmon1/temp5_input": "-128000\n",
            "hwmon/hwmon1/temp6_input": "garbage\n",
        },
    )
    assert HwmonSensor(root).read() == {"temperature_celsius": 63.5}


def test_thermal_zones_stand_in_for_hwmon(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "thermal/thermal_zone0/type": "battery\n",
            "thermal/thermal_zone0/temp": "80000\n",
            "thermal/thermal_zone1/type": "cpu-thermal\n",
            "thermal/thermal_zone1/temp": "51000\n",
        },
    )
    assert HwmonSensor(root).read() == {"temperature_celsius": 51.0}


def test_without_a_thermometer_the_temperature_is_absent(tmp_path: Path) -> None:
    assert HwmonSensor(str(tmp_path / "none")).read() == {}


def test_a_thermometer_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    root = write(tmp_path, {"hwmon/hwmon0/name": "k10temp", "hwmon/hwmon0/temp1_input": "garbage"})
    with pytest.raises(SensorError, match="temp1_input"):
        HwmonSensor(root).read()


def cgroup(tmp_path: Path, membership: str, files: dict[str, str]) -> dict[str, float]:
    member = tmp_path / "self-cgroup"
    member.write_text(membership)
    return CgroupSensor(write(tmp_path / "fs", files), str(member)).read()


def test_cgroup_v2_used_leaves_out_the_page_cache(tmp_path: Path) -> None:
    readings = cgroup(
        tmp_path,
        "0::/box/app\n",
        {
            "cgroup.controllers": "memory\n",
            "box/memory.max": f"{GIB}\n",
            "box/memory.current": f"{GIB - 1000}\n",
            "box/memory.stat": f"anon 5\ninactive_file {900 * 2**20}\nactive_file {20 * 2**20}\nslab_reclaimable 24\n",
            "box/app/memory.max": "max\n",
            "box/app/memory.current": "5\n",
        },
    )
    assert readings["memory_total_bytes"] == GIB
    assert readings["memory_used_bytes"] == GIB - 1000 - 920 * 2**20 - 24


def test_cgroup_v1_in_a_container_whose_path_is_the_hosts(tmp_path: Path) -> None:
    readings = cgroup(
        tmp_path,
        "7:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n",
        {
            "memory/memory.limit_in_bytes": "1073741824\n",
            "memory/memory.usage_in_bytes": "500000000\n",
            "memory/memory.stat": "total_inactive_file 100000000\ninactive_file 1\n",
        },
    )
    assert readings == {"memory_total_bytes": 1073741824.0, "memory_used_bytes": 400000000.0}


@pytest.mark.parametrize(
    "files",
    [
        {"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.usage_in_bytes": "5\n"},
        {"cgroup.controllers": "memory", "memory.max": "max\n", "memory.current": "5\n"},
        {"cgroup.controllers": "memory", "memory.max": "oops\n", "memory.current": "5\n"},
        {},
    ],
)
def test_no_limit_is_no_reading(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "fs").mkdir()
    assert cgroup(tmp_path, "0::/\n", files) == {}


def test_psi_reads_the_share_of_the_last_ten_seconds(tmp_path: Path) -> None:
    line = "some avg10={} avg60=0.00 avg300=0.00 total=1\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=1\n"
    root = write(tmp_path, {"memory": line.format("12.34"), "cpu.pressure": line.format("3.00")})
    assert PsiSensor(root).read() == {"memory_pressure_percent": 12.34, "cpu_pressure_percent": 3.0}
    assert PsiSensor(str(tmp_path / "none")).read() == {}


@pytest.mark.parametrize(
    ("device", "spec", "expected"),
    [
        ("cpu", "thermometer", "unknown sensor 'thermometer': expected one of psutil"),
        ("cpu", "board=unix:/x", "sensor 'board' cannot watch cpu"),
        ("npu:0", "board", "needs the board's address"),
        ("npu:0", "board=/x", "expected unix:/path"),
        ("cpu", "psutil=1", "takes no argument"),
        ("cpu", "npu-smi", "sensor 'npu-smi' cannot watch cpu"),
        ("npu:0", "npu-smi=/no/such/tool", "'/no/such/tool' is not an executable file that can be used"),
        ("npu:0", "npu-smi=/etc/passwd", "is not an executable file that can be used"),
        ("npu:0", "dcmi=/no/such.so", "is not a library file that can be used"),
        ("npu:0", "npu-exporter", "needs the exporter's address"),
        ("npu:0", "npu-exporter=localhost:8082", "expected http://HOST:PORT/metrics"),
    ],
)
def test_a_sensor_spec_is_refused_by_name(device: str, spec: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make_sensor(DeviceId.parse(device), spec)


def test_a_sensor_that_may_hang_for_good_has_an_agent_of_its_own() -> None:
    assert grouped(("npu-smi", "dcmi=/x.so", "board=unix:/y")) == [("npu-smi", "board=unix:/y"), ("dcmi=/x.so",)]
    assert grouped(()) == []
