"""The DCMI sensor against a stand-in library, which is real code built with the machine's compiler."""

from pathlib import Path

import pytest

from coldplate_governor.sensors.base import SensorError, SensorUnusable
from coldplate_governor.sensors.dcmi import DcmiSensor
from coldplate_governor.sensors.dcmi_library import find_dcmi
from coldplate_governor.sensors.throttle import throttle_cause
from support.fake_dcmi import fake_dcmi

MIB = 2**20


def setting(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"FAKE_DCMI_{name.upper()}", value)


def test_a_310p_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DcmiSensor(1, fake_dcmi()).read() == {
        "temperature_celsius": 61,
        "card_power_watts": 61.5,
        "board_temperature_celsius": 41,
        "utilization_percent": 96,
        "frequency_mhz": 960,
        "rated_frequency_mhz": 1080,
        "memory_total_bytes": 44280 * MIB,
        "memory_used_bytes": 1529 * MIB,
        "memory_bandwidth_percent": 33,
        "health": "alarm",
        "error_codes": "80E20207 80DE0207",
        "throttle_cause": "thermal+power-cap",
        "firmware_limit_celsius": 95,
        "reset_celsius": 115,
    }


def test_a_910b_has_hbm_and_power_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    setting(monkeypatch, chip="910b")
    told = DcmiSensor(0, fake_dcmi()).read()
    assert (told["power_watts"], told["memory_temperature_celsius"]) == (93.6, 71)
    assert (told["memory_used_bytes"], told["memory_total_bytes"]) == (20701 * MIB, 65536 * MIB)
    assert told["memory_bandwidth_percent"] == 57
    assert "card_power_watts" not in told
    assert "board_temperature_celsius" not in told, "0x7ffd is the controller's word for no reading"


def test_a_310b_whose_health_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    setting(monkeypatch, chip="310b")
    told = DcmiSensor(0, fake_dcmi()).read()
    assert told["power_watts"] == 10.4
    assert not {"health", "board_temperature_celsius"} & told.keys()


def test_symbols_a_driver_lacks_are_done_without() -> None:
    told = DcmiSensor(0, fake_dcmi("AICORE_INFO", "SENSOR_INFO")).read()
    assert (told["frequency_mhz"], told["rated_frequency_mhz"]) == (500, 1000), "from the call for single clocks"
    assert "firmware_limit_celsius" not in told
    assert told["temperature_celsius"] == 60


def test_a_call_that_fails_costs_its_own_quantity(monkeypatch: pytest.MonkeyPatch) -> None:
    setting(monkeypatch, fail="dcmi_get_device_temperature:-8006,dcmi_get_device_info:-8255")
    sensor = DcmiSensor(0, fake_dcmi())
    with pytest.raises(SensorError, match="dcmi_get_device_temperature returned -8006: the driver timed out") as caught:
        sensor.read()
    told = caught.value.readings
    assert told["utilization_percent"] == 96
    assert not {"temperature_celsius", "throttle_cause"} & told.keys()
    setting(monkeypatch, fail="")
    told = sensor.read()
    assert told["temperature_celsius"] == 60
    assert "throttle_cause" not in told, "what is not supported is asked once"


def test_thresholds_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = DcmiSensor(0, fake_dcmi())
    sensor.read()
    setting(monkeypatch, fail="dcmi_get_device_sensor_info:-8006")
    assert sensor.read()["firmware_limit_celsius"] == 95


@pytest.mark.parametrize(
    ("fail", "unusable", "expected"),
    [
        ("dcmi_init:-8005", True, "-8005: the driver does not answer"),
        ("dcmi_init:-8020", True, "-8020: the device is held by another container"),
        ("dcmi_get_card_list:-8013", True, "-8013: not supported in a container"),
        ("dcmi_get_device_id_in_card:-8012", False, "-8012: the device is not ready"),
        ("dcmi_get_device_logic_id:-8002", True, "-8002: not permitted"),
        ("dcmi_init:-1", False, "-1: a code without a published meaning"),
    ],
)
def test_codes_in_words(monkeypatch: pytest.MonkeyPatch, fail: str, unusable: bool, expected: str) -> None:
    setting(monkeypatch, fail=fail)
    sensor = DcmiSensor(0, fake_dcmi())
    with pytest.raises(SensorError, match=expected) as caught:
        sensor.read()
    assert isinstance(caught.value, SensorUnusable) == unusable
    setting(monkeypatch, fail="")
    if unusable:
        with pytest.raises(SensorUnusable, match=expected):
            sensor.read()  # not asked again at once
    else:
        assert sensor.read()["temperature_celsius"] == 60


def test_a_device_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(SensorError, match=r"no device 7; it shows 0 \(card 2 chip 0\), 1 \(card 2 chip 1\)"):
        DcmiSensor(7, fake_dcmi()).read()


def test_a_missing_or_foreign_library_is_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldplate_governor.sensors.dcmi_library._PLACES", (str(tmp_path / "none.so"),))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert find_dcmi() is None
    with pytest.raises(SensorUnusable, match=r"libdcmi\.so not found: .* --sensor dcmi=PATH"):
        DcmiSensor(0).read()
    (tmp_path / "libdcmi.so").write_text("no library")
    assert find_dcmi() == str(tmp_path / "libdcmi.so")
    with pytest.raises(SensorUnusable, match="cannot be loaded"):
        DcmiSensor(0).read()


@pytest.mark.parametrize(
    ("bitmap", "expected"),
    [(0, "none"), (1, "idle"), (1 << 2, "thermal"), (1 << 3 | 1 << 4, "sw-edp+hw-edp"), (1 << 63, "bit-63")],
)
def test_throttle_causes(bitmap: int, expected: str) -> None:
    assert throttle_cause(bitmap) == expected
    assert len(throttle_cause(2**64 - 1)) <= 80
