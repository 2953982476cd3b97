"""Weights in fewer bits as data."""

from collections.abc import Callable

import pytest
import torch

from coldplate_engine.weights.quantized import Int4Weight, Int8Weight, join_rows, take_rows


def int4(rows: int) -> Int4Weight:
    generator = torch.Generator().manual_seed(rows)
    return Int4Weight(
        torch.randint(0, 256, (rows, 8), generator=generator, dtype=torch.uint8),
        torch.rand(rows, 2, generator=generator),
        torch.rand(rows, 2, generator=generator) * 15,
        8,
    )


def int8(rows: int, activations: bool = False) -> Int8Weight:
    generator = torch.Generator().manual_seed(rows)
    values = torch.randint(-127, 128, (rows, 16), generator=generator, dtype=torch.int8)
    return Int8Weight(values, torch.rand(rows, 1, generator=generator), 16, activations)


def test_int4_reads_the_low_half_first() -> None:
    weight = Int4Weight(
        torch.tensor([[0x21, 0x43]], dtype=torch.uint8), torch.tensor([[2.0, 0.5]]), torch.tensor([[1.0, 0.0]]), 2
    )
    assert weight.shape == (1, 4)
    assert weight.dequantized().tolist() == [[0.0, 2.0, 1.5, 2.0]]


@pytest.mark.parametrize("make", [int4, int8])
def test_rows_are_independent(make: Callable[[int], Int4Weight | Int8Weight]) -> None:
    a, b = make(3), make(5)
    joined = join_rows([a, b])
    assert not isinstance(joined, torch.Tensor)
    assert torch.equal(joined.dequantized(), torch.cat([a.dequantized(), b.dequantized()]))
    order = torch.tensor([7, 0, 3])
    taken = take_rows(joined, order)
    assert not isinstance(taken, torch.Tensor)
    assert torch.equal(taken.dequantized(), joined.dequantized()[order])


def test_weights_of_different_kinds_are_not_joined() -> None:
    with pytest.raises(ValueError, match="different kinds"):
        join_rows([int4(2), int8(2)])
    with pytest.raises(ValueError, match="different kinds"):
        join_rows([int8(2), int8(2, activations=True)])
