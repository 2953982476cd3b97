"""Converting plain weights to fewer bits at load."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from coldplate_engine.weights.convert import converted, to_int4, to_int8
from coldplate_engine.weights.quantized import Int4Weight, Int8Weight


def matrix(seed: int, rows: int, width: int, spread: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator) * spread


@given(st.integers(0, 2**31), st.integers(1, 9), st.sampled_from([32, 64, 128]), st.floats(1e-6, 1e4))
def test_int4_is_within_half_a_step(seed: int, rows: int, group: int, spread: float) -> None:
    weight = matrix(seed, rows, 2 * group, spread)
    grouped = weight.view(rows, 2, group)
    step = (grouped.amax(2) - grouped.amin(2)).repeat_interleave(group, dim=1) / 15
    error = (to_int4(weight, group).dequantized() - weight).abs()
    assert (error <= step * 0.501).all()


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 70), st.floats(1e-6, 1e4))
def test_int8_is_within_half_a_step(seed: int, rows: int, width: int, spread: float) -> None:
    weight = matrix(seed, rows, width, spread)
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    error = (to_int8(weight, activations=False).dequantized() - weight).abs()
    assert (error <= step * 0.501).all()


def test_groups_of_one_value_are_exact() -> None:
    for value in (0.0, 3.5, -2.25):
        weight = torch.full((2, 64), value)
        assert torch.equal(to_int4(weight, 32).dequantized(), weight)
        assert torch.allclose(to_int8(weight, activations=True).dequantized(), weight)


def test_what_becomes_of_each_matrix() -> None:
    weight = matrix(0, 4, 64, 1.0)
    assert isinstance(converted(weight, "int4"), Int4Weight)
    head, narrow = converted(weight, "int4", head=True), converted(weight[:, :48], "int4")
    assert isinstance(head, Int8Weight)
    assert not head.activations
    assert isinstance(narrow, Int8Weight)
    active = converted(weight, "w8a8")
    assert isinstance(active, Int8Weight)
    assert active.activations
