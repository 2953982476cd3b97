"""Names of groups of devices."""

import pytest

from coldplate.device_id import parse_group


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("cpu", ["cpu"]),
        ("npu:3", ["npu:3"]),
        ("npu:0-3", ["npu:0", "npu:1", "npu:2", "npu:3"]),
        ("npu:0+2", ["npu:0", "npu:2"]),
        ("npu:0-1+4", ["npu:0", "npu:1", "npu:4"]),
    ],
)
def test_groups(name: str, devices: list[str]) -> None:
    assert [str(device) for device in parse_group(name)] == devices


@pytest.mark.parametrize("name", ["npu:", "npu:3-1", "npu:1+1", "npu:2+0", "npu:0-999", "npu:-1", "npu:0-x", "cpu:0-1"])
def test_bad_groups_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="device"):
        parse_group(name)
