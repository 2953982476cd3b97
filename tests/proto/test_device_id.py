"""Names of devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate.device_id import DeviceId


@given(st.integers(0, 10_000))
def test_a_name_reads_back(index: int) -> None:
    assert str(DeviceId.parse(f"npu:{index}")) == f"npu:{index}"


def test_the_cpu_has_no_index() -> None:
    assert DeviceId.parse("cpu") == DeviceId("cpu")
    assert str(DeviceId("cpu")) == "cpu"


@pytest.mark.parametrize("name", ["", "cpu:0", "npu", "npu:", "npu:-1", "npu:x", "npu:²", "gpu:0", "NPU:0"])
def test_another_name_is_refused_with_the_forms_allowed(name: str) -> None:
    with pytest.raises(ValueError, match="expected 'cpu' or 'npu:N'"):
        DeviceId.parse(name)


def test_a_long_name_is_shortened() -> None:
    with pytest.raises(ValueError, match="unknown device") as refused:
        DeviceId.parse("x" * 20_000)
    assert len(str(refused.value)) < 200
