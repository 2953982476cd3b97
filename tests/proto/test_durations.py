"""Durations keep nanoseconds."""

from hypothesis import given
from hypothesis import strategies as st

from coldplate.durations import to_duration, to_seconds


@given(st.floats(0, 1e7))
def test_seconds_survive_the_way_there_and_back(value: float) -> None:
    duration = to_duration(value)
    assert 0 <= duration.nanos < 1_000_000_000
    assert abs(to_seconds(duration) - value) <= 1e-8
