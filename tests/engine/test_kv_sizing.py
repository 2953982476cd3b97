"""What the memory goes to, and what is refused with numbers a person can act on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate_engine.kv_sizing import GIB, KvPlan, MemoryNeeds, check_host_memory, check_weights_fit, plan_kv
from coldplate_engine.runner import ModelError

MIB = 1 << 20


def needs(available: int, weights: int = 0, workspace: int = 0, offload: int = 0) -> MemoryNeeds:
    """A step of 2048 tokens takes ``workspace`` bytes."""
    return MemoryNeeds(available, weights, lambda tokens: workspace * tokens // 2048, 2048, offload)


def plan(
    available: int,
    tokens: int | None = None,
    gib: float | None = None,
    useful: int = 10**9,
    weights: int = 0,
    workspace: int = 0,
    offload: int = 0,
) -> KvPlan:
    return plan_kv(
        needs(available, weights, workspace, offload),
        bytes_per_token=1024,
        block_size=16,
        useful_tokens=useful,
        tokens=tokens,
        gib=gib,
    )


def test_defaults_take_a_quarter_up_to_two_gib_and_no_more_than_is_of_use() -> None:
    assert plan(GIB).tokens == GIB // 4 // 1024
    assert plan(3 * GIB, weights=GIB, workspace=GIB // 2, offload=GIB // 2).tokens == GIB // 4 // 1024
    assert plan(64 * GIB).tokens == 2 * GIB // 1024
    assert plan(64 * GIB, useful=1000).tokens == 1008


def test_explicit_sizes_are_rounded_down_to_blocks() -> None:
    assert plan(GIB, tokens=70).tokens == 64
    assert plan(GIB, gib=0.5).tokens == GIB // 2 // 1024


def test_the_report_adds_up_what_the_device_has() -> None:
    text = needs(4 * GIB, GIB, 128 * MIB, GIB // 2).sum(plan(4 * GIB, tokens=1 << 20))
    assert text == (
        "weights 1.00 GiB + KV cache 1.00 GiB (1048576 tokens) + workspace 0.12 GiB + KV offload 0.50 GiB "
        "of 4.00 GiB available"
    )


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"available": GIB, "gib": 2.0}, r"cache of 2\.00 GiB does not fit: 1\.00 GiB .*--kv-cache-gib 1 would fit"),
        ({"available": GIB, "tokens": 1 << 21, "weights": GIB // 2}, r"--kv-cache-tokens 524288 would fit"),
        ({"available": 20 * 1024}, r"one block of 16 tokens needs 0\.02 MiB, 0\.00 MiB"),
        ({"available": GIB, "workspace": 2 * GIB}, r"step of 2048 tokens .*--max-num-batched-tokens 512 would fit"),
        ({"available": GIB, "offload": GIB}, r"--kv-offload-gib of 1\.00 GiB .*--kv-offload-gib 0\.5 would fit"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(wanted: dict[str, int], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        plan(**wanted)


def test_weights_and_host_memory_that_do_not_fit_are_refused_with_what_would() -> None:
    with pytest.raises(ModelError, match=r"need 60\.00 MiB, the device has 50\.00 MiB .*--quantize int8 would fit"):
        check_weights_fit(60 * MIB, 50 * MIB)
    with pytest.raises(ModelError, match=r"--quantize int4 would fit"):
        check_weights_fit(100 * MIB, 50 * MIB)
    with pytest.raises(ModelError, match=r"need 40\.00 MiB, the device has 30\.00 MiB .*a smaller model"):
        check_weights_fit(100 * MIB, 30 * MIB, "int4")
    check_weights_fit(100 * MIB, 50 * MIB, "int4")
    with pytest.raises(ModelError, match=r"--kv-offload-gib 1 would fit"):
        check_host_memory(3 * GIB, 2 * GIB)


sizes = st.integers(-GIB, 1 << 40)


@given(sizes, st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_whatever_is_there_it_is_divided_or_refused_without_a_negative_number(
    available: int, weights: int, workspace: int, offload: int
) -> None:
    said = ""
    try:
        made = plan(max(0, available), weights=weights, workspace=workspace, offload=offload)
    except ModelError as error:
        said = str(error)
    else:
        assert 0 < made.bytes <= available - weights - offload
    assert " -" not in said.replace(" --", "")
