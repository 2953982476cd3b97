"""The same numbers on every machine, for ever: streams in flight continue by them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate_engine.uniform import uniform


@pytest.mark.parametrize(
    ("seed", "position", "value"),
    [
        (0, 0, 0.6524484863740322),
        (0, 1, 0.7012121095215252),
        (1, 0, 0.36818951565166946),
        (42, 7, 0.7347204584623639),
        (2**64 - 1, 0, 0.3662420901697574),
        (2**63, 1_000_000, 0.16946176953908065),
    ],
)
def test_golden_values(seed: int, position: int, value: float) -> None:
    assert uniform(seed, position) == value


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31))
def test_in_range(seed: int, position: int) -> None:
    assert 0.0 <= uniform(seed, position) < 1.0


def test_flat_over_positions_and_over_seeds() -> None:
    count, bins = 20_000, 20
    for values in ([uniform(7, i) for i in range(count)], [uniform(i, 3) for i in range(count)]):
        seen, _ = np.histogram(values, bins=bins, range=(0, 1))
        chi_square = float((((seen - count / bins) ** 2) / (count / bins)).sum())
        assert chi_square < 43.8  # 99.9 % of chi-square with 19 degrees of freedom


def test_neighbouring_positions_are_not_correlated() -> None:
    values = np.array([uniform(11, i) for i in range(20_001)])
    assert abs(float(np.corrcoef(values[:-1], values[1:])[0, 1])) < 0.03
