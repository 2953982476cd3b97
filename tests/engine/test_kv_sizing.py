"""What the KV cache gets, and what is refused with numbers a person can act on."""

import pytest

from coldplate_engine.kv_sizing import GIB, check_weights_fit, plan_kv
from coldplate_engine.runner import ModelError


def plan(available: int, tokens: int | None = None, gib: float | None = None, useful: int = 10**9) -> int:
    return plan_kv(
        available_bytes=available, bytes_per_token=1024, block_size=16, useful_tokens=useful, tokens=tokens, gib=gib
    ).tokens


def test_defaults_take_a_quarter_up_to_two_gib_and_no_more_than_is_of_use() -> None:
    assert plan(GIB) == GIB // 4 // 1024
    assert plan(64 * GIB) == 2 * GIB // 1024
    assert plan(64 * GIB, useful=1000) == 1008


def test_explicit_sizes_are_rounded_down_to_blocks() -> None:
    assert plan(GIB, tokens=70) == 64
    assert plan(GIB, gib=0.5) == GIB // 2 // 1024


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(ModelError, match=r"cache of 2\.00 GiB does not fit: 1\.00 GiB"):
        plan(GIB, gib=2.0)
    with pytest.raises(ModelError, match=r"needs 0\.02 MiB, 0\.00 MiB"):
        plan(-5)
    with pytest.raises(ModelError, match=r"need 60\.00 MiB, the device has 50\.00 MiB"):
        check_weights_fit(60 << 20, 50 << 20)
