"""The npu-exporter sensor against a real HTTP server that answers what such an exporter does."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate.clock import ManualClock
from coldplate_governor.sensors.base import AGE, SensorError, SensorUnusable
from coldplate_governor.sensors.npu_exporter import NpuExporterSensor, check_url, samples
from support.processes import free_port

MIB = 2**20
LABELS = 'id="{}",model_name="{}",vdie_id="",pcie_bus_info="0000:01:00.0",namespace="",pod_name="",container_name=""'


class Exporter:
    """Serves ``page`` with ``status``; waits for ``gate`` before it answers when there is one."""

    def __init__(self) -> None:
        self.page, self.status = "", 200
        self.gate: threading.Event | None = None
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if exporter.gate:
                    exporter.gate.wait(30)
                body = exporter.page.encode()
                self.send_response(exporter.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                pass  # a client that gave up

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))

    def chip(self, index: int, model: str, /, *, stamp: int | None = None, **metrics: Any) -> None:
        """Add the metrics of one chip to the page."""
        for name, value in metrics.items():
            labels = LABELS.format(index, model)
            end = "" if stamp is None else f" {stamp}"
            self.page += f"# TYPE npu_chip_info_{name} gauge\nnpu_chip_info_{name}{{{labels}}} {value:.12g}{end}\n"


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    served = Exporter()
    served.thread.start()
    yield served
    if served.gate:
        served.gate.set()
    served.server.shutdown()
    served.thread.join()
    served.server.server_close()


def test_a_310p_tells_its_boards_power(exporter: Exporter) -> None:
    exporter.page = "machine_npu_nums 2\n"
    exporter.chip(0, "310P3-Ascend-V1", temperature=45)
    metrics: dict[str, Any] = {
        "temperature": 61,
        "power": 70.5,
        "utilization": 0,
        "aicore_current_freq": 960,
        "health_status": 1,
    }
    exporter.chip(1, "310P3-Ascend-V1", **metrics, used_memory=1412, total_memory=43693, error_code=0)
    told = dict(NpuExporterSensor(1, exporter.url).read())
    assert told.pop(AGE) == 0
    assert told == {
        "temperature_celsius": 61,
        "card_power_watts": 70.5,
        "utilization_percent": 0,
        "frequency_mhz": 960,
        "health": "ok",
        "memory_used_bytes": 1412 * MIB,
        "memory_total_bytes": 43693 * MIB,
        "error_codes": "",
    }


def test_a_910b_tells_its_own_power_and_hbm(exporter: Exporter) -> None:
    memory = {"hbm_used_memory": 3380, "hbm_total_memory": 65536, "used_memory": 0, "total_memory": 0}
    faults = {"error_code": 0x80E00209, "error_code_1": 0x80E01801, "error_code_2": 0}
    exporter.chip(0, "910B3", power=93.6, hbm_temperature=71, hbm_bandwidth_utilization=57, **memory, **faults)
    told = NpuExporterSensor(0, exporter.url).read()
    assert (told["power_watts"], told["memory_temperature_celsius"]) == (93.6, 71)
    assert (told["memory_used_bytes"], told["memory_total_bytes"]) == (3380 * MIB, 65536 * MIB)
    assert told["error_codes"] == "80E00209 80E01801"


def test_what_the_exporter_could_not_ask_for_is_absent(exporter: Exporter) -> None:
    failed = {"temperature": -1, "power": -1, "utilization": -1, "aicore_current_freq": -1, "health_status": -1}
    exporter.chip(0, "310P3", **failed, used_memory=-1, total_memory=21527, error_code=-1)
    told = dict(NpuExporterSensor(0, exporter.url).read())
    told.pop(AGE)
    assert told == {"memory_total_bytes": 21527 * MIB}


def test_one_damaged_line_costs_only_itself(exporter: Exporter) -> None:
    exporter.chip(0, "310P3", temperature=45)
    exporter.page += 'npu_chip_info_power{id="0"} NaN\nnpu_chip_info_utilization{id="0"} \n'
    exporter.page += 'npu_chip_info_used_memory{id="0" 3\n\0\n'
    told = dict(NpuExporterSensor(0, exporter.url).read())
    told.pop(AGE)
    assert told == {"temperature_celsius": 45}


@given(st.text(alphabet='npu_chip_info{}id="0123456789.eE+-, \n\\', max_size=300))
def test_no_page_breaks_the_parser(text: str) -> None:
    for name, labels, value, _ in samples(text + 'npu_chip_info_power{id="0"} 1e400\n'):
        assert name
        assert isinstance(labels, dict)
        assert isinstance(value, float)


def test_an_exporter_that_stands_still_hands_on_old_readings_as_old(exporter: Exporter) -> None:
    clock = ManualClock(100.0)
    exporter.chip(0, "310P3", stamp=1_700_000_000_000, temperature=45)
    sensor = NpuExporterSensor(0, exporter.url, clock=clock)
    assert sensor.read()[AGE] == 0
    clock.advance(2.0)
    assert sensor.read()[AGE] == 2
    clock.advance(3.0)
    with pytest.raises(SensorError, match=r"measures every 5 s, too seldom .* with -updateTime=1") as caught:
        sensor.read()
    assert caught.value.readings[AGE] == 5
    exporter.page = ""
    exporter.chip(0, "310P3", stamp=1_700_000_001_000, temperature=46)
    clock.advance(0.5)
    with pytest.raises(SensorError, match="too seldom"):
        sensor.read()  # it stays so until it has been quicker
    exporter.page = ""
    exporter.chip(0, "310P3", stamp=1_700_000_002_000, temperature=47)
    clock.advance(1.0)
    assert sensor.read()["temperature_celsius"] == 47


def test_failures_in_words(exporter: Exporter) -> None:
    with pytest.raises(SensorError, match="is it an npu-exporter"):
        NpuExporterSensor(0, exporter.url).read()
    exporter.chip(0, "310P3", temperature=45)
    exporter.chip(1, "310P3", temperature=45)
    with pytest.raises(SensorError, match="no device 4; it shows 0, 1"):
        NpuExporterSensor(4, exporter.url).read()
    exporter.status = 503
    with pytest.raises(SensorError, match="answers 503"):
        NpuExporterSensor(0, exporter.url).read()
    with pytest.raises(SensorUnusable, match="nobody listens at"):
        NpuExporterSensor(0, f"http://127.0.0.1:{free_port()}/metrics").read()


def test_an_exporter_that_hangs_is_given_up(exporter: Exporter) -> None:
    exporter.gate = threading.Event()
    with pytest.raises(SensorError, match="timed out"):
        NpuExporterSensor(0, exporter.url, timeout_s=0.1).read()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8082", "ftp://host/metrics", "http:///metrics", "file:///etc/passwd"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="expected http://HOST:PORT/metrics"):
        check_url(url)
