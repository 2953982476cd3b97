"""Limits combine to the tightest, whatever the order and however often."""

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate.limits import FIELD_NAMES, NO_LIMITS, Limits, tightest
from coldplate.limits_proto import limits_from_proto, limits_to_proto
from coldplate.v1 import device_pb2

SHARE = st.floats(0, 1, exclude_min=True)
COUNT = st.integers(1, 2**31 - 1)
BUDGET = st.integers(0, 2**31 - 1)
LIMITS = st.builds(
    Limits,
    duty=st.none() | SHARE,
    max_batch=st.none() | COUNT,
    max_prefill_tokens=st.none() | BUDGET,
    max_new_tokens=st.none() | COUNT,
    max_reasoning_tokens=st.none() | BUDGET,
    max_context_tokens=st.none() | COUNT,
    max_encoder_tokens=st.none() | BUDGET,
    min_priority=st.none() | st.integers(1, 3),
    admit=st.none() | st.booleans(),
    cpu_share=st.none() | SHARE,
)


def as_wide(name: str, value: float | None) -> float:
    """How much a value allows, growing with what it allows; no limit allows most."""
    if value is None:
        return math.inf
    return -value if name == "min_priority" else value


def combined(*limits: Limits) -> Limits:
    return tightest((str(number), item) for number, item in enumerate(limits))[0]


@given(LIMITS, LIMITS)
def test_order_does_not_matter(one: Limits, other: Limits) -> None:
    assert combined(one, other) == combined(other, one)


@given(LIMITS, LIMITS, LIMITS)
def test_grouping_does_not_matter(one: Limits, other: Limits, third: Limits) -> None:
    assert combined(combined(one, other), third) == combined(one, combined(other, third)) == combined(one, other, third)


@given(LIMITS)
def test_repetition_and_no_limits_change_nothing(limits: Limits) -> None:
    assert combined(limits, limits) == combined(limits, NO_LIMITS) == combined(limits) == limits


@given(LIMITS, LIMITS)
def test_never_looser_than_any_source_and_always_one_of_them(one: Limits, other: Limits) -> None:
    in_force = combined(one, other)
    for name in FIELD_NAMES:
        allowed = [as_wide(name, getattr(source, name)) for source in (one, other)]
        assert as_wide(name, getattr(in_force, name)) == min(allowed)


@given(LIMITS, LIMITS)
def test_the_binding_source_holds_the_value_in_force(one: Limits, other: Limits) -> None:
    sources = {"operator": one, "governor": other}
    in_force, binding = tightest(sources.items())
    assert set(binding) == set(in_force.set_fields())
    for name, source in binding.items():
        assert getattr(sources[source], name) == getattr(in_force, name)


def test_among_equals_the_first_source_binds() -> None:
    assert tightest([("operator", Limits(max_batch=4)), ("safe", Limits(max_batch=4))])[1] == {"max_batch": "operator"}


@given(LIMITS)
def test_the_message_carries_every_field(limits: Limits) -> None:
    assert limits_from_proto(limits_to_proto(limits)) == limits


def test_the_message_has_the_same_fields() -> None:
    assert {field.name for field in fields(Limits)} == set(device_pb2.DeviceLimits.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("duty", 0.0),
        ("duty", 1.01),
        ("duty", math.nan),
        ("cpu_share", -0.5),
        ("cpu_share", math.inf),
        ("max_batch", 0),
        ("max_batch", 2**31),
        ("max_prefill_tokens", -1),
        ("max_new_tokens", 0),
        ("min_priority", 0),
        ("min_priority", 4),
    ],
)
def test_an_impossible_limit_is_refused_by_name_and_value(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} is {value}: expected"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_unlimited_is_false_and_any_limit_is_true() -> None:
    assert not NO_LIMITS
    assert Limits(max_prefill_tokens=0)
    assert Limits(admit=False)
