"""Which devices share a heatsink."""

import pytest

from coldplate.device_id import DeviceId
from coldplate.profile import load_profile
from coldplate_governor.heatsinks import heatsinks
from coldplate_governor.settings import GovernedDevice


def devices(*entries: str) -> list[GovernedDevice]:
    found = []
    for entry in entries:
        name, _, profile = entry.partition("=")
        found.append(GovernedDevice(DeviceId.parse(name), load_profile(profile or "310p-duo"), ()))
    return found


def names(groups: list[list[GovernedDevice]]) -> list[list[str]]:
    return [[str(item.device) for item in group] for group in groups]


def test_chips_of_a_duo_sit_in_pairs_and_others_alone() -> None:
    found = heatsinks(devices("cpu=cpu", "npu:0", "npu:1", "npu:2", "npu:5", "npu:7=310p-pro"))
    assert names(found) == [["cpu"], ["npu:0", "npu:1"], ["npu:2"], ["npu:5"], ["npu:7"]]


def test_chips_of_two_kinds_share_nothing() -> None:
    assert names(heatsinks(devices("npu:0", "npu:1=310p-pro"))) == [["npu:0"], ["npu:1"]]


def test_a_named_heatsink_goes_before_the_profile() -> None:
    found = heatsinks(devices("npu:0", "npu:1", "npu:2", "npu:3"), ["npu:1,npu:2", "npu:0"])
    assert names(found) == [["npu:0"], ["npu:1", "npu:2"], ["npu:3"]]


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (["npu:9"], r"npu:9 is not governed: add --device npu:9"),
        (["gpu:0"], r"heatsink 'gpu:0': unknown device"),
        (["npu:0,npu:1", "npu:1"], r"npu:1 is on a heatsink already"),
        (["npu:0,npu:2"], r"profiles '310p-duo' and '310p-pro' differ"),
    ],
)
def test_an_error_names_the_heatsink_and_the_device(named: list[str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        heatsinks(devices("npu:0", "npu:1", "npu:2=310p-pro"), named)
