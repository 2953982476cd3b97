"""Chips on one heatsink: one budget, split by demand; what one cannot use the others get."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate_governor.law import LawState
from coldplate_governor.law.split import demand, split
from governor.law_play import DUO, at, play_group

A, B = "npu:0", "npu:1"


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 6))
def test_a_split_gives_all_that_can_be_used_and_no_more(requests: dict[str, float], total: float) -> None:
    grants = split(total, requests)
    wanting = [name for name, share in requests.items() if share > 1e-9]
    assert all(0 <= grant <= 1 for grant in grants.values())
    assert all(grants[name] == 0 for name in requests if name not in wanting)
    assert sum(grants.values()) == pytest.approx(min(total, len(wanting)), abs=1e-6)


@given(
    st.dictionaries(st.text(max_size=3), st.floats(0.1, 1), min_size=1, max_size=6), st.floats(0, 6), st.floats(0, 6)
)
def test_a_larger_budget_takes_from_nobody(requests: dict[str, float], one: float, other: float) -> None:
    less, more = (split(total, requests) for total in sorted((one, other)))
    assert all(less[name] <= more[name] + 1e-9 for name in requests)


def test_equal_demands_get_equal_shares_and_unequal_ones_in_proportion() -> None:
    assert split(1.0, {"a": 1.0, "b": 1.0}) == {"a": 0.5, "b": 0.5}
    assert split(1.0, {"a": 0.9, "b": 0.3}) == pytest.approx({"a": 0.75, "b": 0.25})
    assert split(1.5, {"a": 1.0, "b": 0.1}) == pytest.approx({"a": 1.0, "b": 0.5})


def test_demand_rises_at_once_and_fades_slowly() -> None:
    assert demand(0.2, 0.5, 0, 0.5, 1.0) == 1.0, "it uses all it has"
    assert demand(0.2, 0.1, 3, 0.5, 1.0) == 1.0, "streams wait"
    assert demand(0.2, None, None, 0.5, 1.0) == 1.0, "unknown is everything"
    fading = demand(1.0, 0.1, 0, 0.5, 1.0)
    assert 0.9 < fading < 1.0
    for _ in range(100):
        fading = demand(fading, 0.1, 0, 0.5, 1.0)
    assert fading == pytest.approx(0.225, abs=0.01)


def test_two_busy_chips_share_alike_and_the_hotter_one_drives() -> None:
    warming = [80.0 + min(7.0, 0.5 * second) for second in range(30)]
    rounds = [{A: at(t, busy_share=1.0), B: at(0.5 * t + 40, busy_share=1.0)} for t in warming]
    _, decisions, _ = play_group(DUO, rounds)
    last = decisions[-1]
    assert last[A].duty == last[B].duty < 0.9
    assert last[A].terms.slewed == last[B].terms.slewed == pytest.approx(last[A].duty, abs=1e-3)


def test_an_idle_chip_leaves_its_share_to_the_busy_one() -> None:
    warming = [80.0 + min(6.5, 0.5 * second) for second in range(30)]
    hot = [{A: at(t, busy_share=1.0), B: at(t, busy_share=1.0)} for t in warming]
    state, both, now = play_group(DUO, hot)
    assert both[-1][A].duty < 0.8
    _, one, _ = play_group(DUO, [{A: at(85.0, busy_share=1.0), B: at(84.0, busy_share=0.01)}] * 60, state, now)
    assert one[-1][A].duty > both[-1][A].duty + 0.15
    assert one[-1][A].duty > one[-1][B].duty


def test_the_share_of_a_lost_chip_goes_to_the_other() -> None:
    up = {"engine_up": True, "busy_share": 1.0}
    state, _, now = play_group(DUO, [{A: at(80.0, **up), B: at(80.0, **up)}] * 5)
    warming = [80.0 + min(6.5, 0.5 * second) for second in range(30)]
    state, both, now = play_group(DUO, [{A: at(t, **up), B: at(t, **up)} for t in warming], state, now)
    state, after, now = play_group(
        DUO, [{A: at(85.0, **up), B: at(80.0, engine_up=False, busy_share=0.0)}] * 60, state, now
    )
    assert after[-1][B].mode == "FALLBACK"
    assert after[-1][A].duty >= min(1.0, 1.6 * both[-1][A].duty)


def test_a_chip_without_its_heatsink_is_critical_and_its_neighbour_serves_on() -> None:
    state, _, now = play_group(DUO, [{A: at(82.0), B: at(82.0)}] * 30)
    rising = [{A: at(82.0 + 1.8 * second), B: at(82.0)} for second in range(10)]
    state, _, now = play_group(DUO, rising, state, now)
    _, after, _ = play_group(DUO, [{A: at(99.0), B: at(80.0)}] * 60, state, now)
    assert after[-1][A].mode in ("CRITICAL", "FALLBACK")
    assert after[-1][B].mode in ("NOMINAL", "THROTTLED")
    assert after[-1][B].duty == 1.0


def test_a_chip_that_comes_and_goes_breaks_nothing() -> None:
    state, _, now = play_group(DUO, [{A: at(80.0), B: at(80.0)}] * 5)
    state, alone, now = play_group(DUO, [{A: at(80.0)}] * 5, state, now)
    assert set(alone[-1]) == {A}
    _, none, _ = play_group(DUO, [{}], state, now)
    assert none[-1] == {}
    _, again, _ = play_group(DUO, [{A: at(80.0), B: at(80.0)}] * 5, LawState(), now)
    assert set(again[-1]) == {A, B}
