"""Names of devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate.device_id import DeviceId, name_in_spec, split_modelled


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


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("cpu", "cpu"),
        ("npu:0-3", "npu:0-3"),
        ("sim:unix:/b.sock#npu:1", "npu:1"),
        ("sim:unix:/b.sock#npu:1,modelled", "npu:1"),
        ("sim:unix:/b.sock#npu:1,modelled=qwen3-8b-w8a8", "npu:1"),
        ("fault:oom@5,cpu", "cpu"),
        ("fault:raise=a,b@5,sim:unix:/b.sock#npu:2,modelled", "npu:2"),
    ],
)
def test_the_device_in_a_workers_spec(spec: str, name: str) -> None:
    assert name_in_spec(spec) == name


def test_what_a_chip_is_modelled_as() -> None:
    assert split_modelled("sim:a#npu:0") == ("sim:a#npu:0", None)
    assert split_modelled("sim:a#npu:0,modelled") == ("sim:a#npu:0", "")
    assert split_modelled("sim:a#npu:0,modelled=qwen3-8b") == ("sim:a#npu:0", "qwen3-8b")
    assert split_modelled("fault:delay=1s@1,modelled-by-hand") == ("fault:delay=1s@1,modelled-by-hand", None)
