"""What a recording holds comes back bit for bit, and what is damaged is noticed."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate.limits import Limits
from coldplate.profile import DeviceProfile, load_profile, profile_names
from coldplate_governor.explain.codec import CodecError, from_json, to_json
from coldplate_governor.explain.lines import LineDamaged, digest, seal, unseal
from coldplate_governor.law import Decision, Inputs, LawState

_SHARE = st.none() | st.floats(0, 1, exclude_min=True)
_COUNT = st.none() | st.integers(1, 3)
LIMITS = st.builds(
    Limits,
    duty=_SHARE,
    max_batch=_COUNT,
    max_prefill_tokens=_COUNT,
    min_priority=_COUNT,
    admit=st.none() | st.booleans(),
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that an annotation allows, every field filled."""
    if hint is Limits:
        return LIMITS
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return st.builds(hint, **{name: values(kind) for name, kind in typing.get_type_hints(hint).items()})
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(values(argument) for argument in arguments))
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(values(argument) for argument in arguments))
    return st.from_type(hint)


def through_a_line(kind: type[Any], value: Any) -> Any:
    return from_json(kind, unseal(seal({"value": to_json(value)}).rstrip(b"\n"))["value"])


@pytest.mark.parametrize("kind", [Inputs, LawState, Decision])
@given(data=st.data())
def test_every_value_comes_back_bit_for_bit(kind: type[Any], data: st.DataObject) -> None:
    value = data.draw(values(kind))
    back = through_a_line(kind, value)
    assert type(back) is kind
    assert digest(to_json(back)) == digest(to_json(value))
    assert repr(back) == repr(value)  # NaN has no other equality, and repr tells 1 from 1.0 and 0.0 from -0.0


@pytest.mark.parametrize("name", profile_names())
def test_profiles_come_back(name: str) -> None:
    profile = load_profile(name)
    assert through_a_line(DeviceProfile, profile) == profile


@pytest.mark.parametrize("number", [0.1 + 0.2, 5e-324, -0.0, 1e308, math.nan, math.inf, -math.inf, 85, 2**63 + 1])
def test_numbers_come_back_as_they_were(number: float) -> None:
    back = through_a_line(Inputs, Inputs(temperature_celsius=number)).temperature_celsius
    assert repr(back) == repr(number)
    assert type(back) is type(number)


def test_what_is_equal_in_value_and_not_in_bits_has_another_digest() -> None:
    plain = digest(to_json(Inputs(power_watts=0.0)))
    assert plain != digest(to_json(Inputs(power_watts=-0.0)))
    assert plain != digest(to_json(Inputs(power_watts=0)))
    assert plain != digest(to_json(Inputs(power_watts=5e-324)))
    assert plain == digest(to_json(Inputs(power_watts=0.0)))


@dataclasses.dataclass(frozen=True)
class _Older:
    temperature_celsius: float | None = None
    mode: typing.Literal["A", "B"] = "A"
    pairs: tuple[tuple[str, int], ...] = ()
    named: Mapping[str, float] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"temperature_celsius": "hot"}, "_Older.temperature_celsius: 'hot' is no float | None"),
        ({"temperature_celsius": True}, "temperature_celsius"),
        ({"mode": "C"}, "_Older.mode"),
        ({"pairs": [["a", 1.5]]}, "1.5 is no int"),
        ({"pairs": [["a"]]}, "_Older.pairs"),
        ({"named": {"a": None}}, "None is no float"),
        ({"colour": 1}, "_Older has no field 'colour'"),
        ([], "is no _Older"),
    ],
)
def test_what_does_not_fit_is_named(data: Any, expected: str) -> None:
    with pytest.raises(CodecError, match=expected.replace("|", r"\|")):
        from_json(_Older, data)


def test_fields_of_another_version_may_be_left_out() -> None:
    assert from_json(_Older, {"colour": 1, "mode": "B"}, lenient=True) == _Older(mode="B")


def test_an_invalid_limit_is_no_crash() -> None:
    with pytest.raises(CodecError, match="duty is 7"):
        from_json(Limits, {"duty": 7.0})


@given(st.binary(max_size=200))
def test_no_line_is_read_that_was_not_written(line: bytes) -> None:
    with pytest.raises(LineDamaged):
        unseal(line)


@given(st.data())
def test_every_damaged_bit_is_noticed(data: st.DataObject) -> None:
    line = bytearray(seal({"kind": "tick", "at": 12.5, "text": "85 °C"}).rstrip(b"\n"))
    bit = data.draw(st.integers(0, 8 * len(line) - 1))
    line[bit // 8] ^= 1 << bit % 8
    with pytest.raises(LineDamaged):
        unseal(bytes(line))
