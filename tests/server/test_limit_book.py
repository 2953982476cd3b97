"""Who limits what, and how leases pass from governor to governor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate.clock import ManualClock
from coldplate.limits import Limits
from coldplate_server.limit_book import Directive, LeaseRefused, LimitBook, StaleCall

SAFE = Limits(duty=0.4, max_batch=4)


def book(clock: ManualClock, *, required: bool = False) -> LimitBook:
    return LimitBook(clock, {"npu:0": SAFE, "cpu": Limits()}, frozenset({"npu:0"} if required else ()))


def apply(limits: LimitBook, governor: str = "g", epoch: int = 1, seq: int = 1, duty: float = 0.8) -> list[str]:
    return limits.apply(governor, epoch, seq, 5.0, {"npu:0": Directive(Limits(duty=duty))})


def test_without_a_governor_nothing_binds_unless_one_is_required() -> None:
    free = book(ManualClock())
    assert free.in_force("npu:0").limits == Limits()
    assert free.governor().state == "ungoverned"
    bound = book(ManualClock(), required=True)
    assert bound.in_force("npu:0").limits == SAFE
    assert set(bound.in_force("npu:0").binding.values()) == {"safe"}
    assert bound.in_force("cpu").limits == Limits()
    assert bound.governor().state == "lost"


def test_safe_limits_hold_once_the_lease_has_run_out_and_end_when_it_is_renewed() -> None:
    clock = ManualClock()
    limits = book(clock)
    apply(limits)
    assert limits.in_force("npu:0").limits == Limits(duty=0.8)
    clock.advance(4.999)
    assert limits.in_force("npu:0").binding == {"duty": "governor"}
    clock.advance(0.001)
    assert limits.in_force("npu:0").limits == SAFE
    assert limits.governor().state == "lost"
    apply(limits, seq=2)
    assert limits.in_force("npu:0").limits == Limits(duty=0.8)


def test_the_tightest_of_operator_and_governor_binds() -> None:
    limits = book(ManualClock())
    apply(limits, duty=0.8)
    limits.set_operator("npu:0", Limits(duty=0.5, max_batch=2))
    in_force = limits.in_force("npu:0")
    assert in_force.limits == Limits(duty=0.5, max_batch=2)
    assert in_force.binding == {"duty": "operator", "max_batch": "operator"}
    limits.set_operator("npu:0", Limits())
    assert limits.in_force("npu:0").limits == Limits(duty=0.8)


def test_an_operator_limit_on_all_devices_and_one_on_a_single_device_both_hold() -> None:
    limits = book(ManualClock())
    limits.set_operator("", Limits(max_batch=8))
    limits.set_operator("cpu", Limits(max_batch=16, duty=0.9))
    assert limits.in_force("cpu").limits == Limits(max_batch=8, duty=0.9)
    assert limits.in_force("npu:0").limits == Limits(max_batch=8)


def test_limits_on_every_device_replace_those_on_single_ones() -> None:
    limits = book(ManualClock())
    limits.set_operator("cpu", Limits(duty=0.9))
    limits.set_operator("", Limits(max_batch=8))
    assert limits.in_force("cpu").limits == Limits(max_batch=8)
    limits.set_operator("cpu", Limits(duty=0.9))
    limits.set_operator("", Limits())
    assert limits.in_force("cpu").limits == Limits()


def test_another_governor_waits_for_the_lease_to_run_out() -> None:
    clock = ManualClock()
    limits = book(clock)
    apply(limits, "first")
    with pytest.raises(LeaseRefused, match=r"'first' holds the lease for another 5\.0 s"):
        apply(limits, "second")
    clock.advance(5)
    apply(limits, "second", duty=0.6)
    assert limits.governor().name == "second"
    assert limits.in_force("npu:0").limits.duty == 0.6


def test_a_newer_epoch_takes_over_at_once_and_the_older_one_is_stale() -> None:
    limits = book(ManualClock())
    apply(limits, epoch=5, seq=100)
    apply(limits, epoch=6, seq=1)
    with pytest.raises(StaleCall, match="epoch 5 is older than 6"):
        apply(limits, epoch=5, seq=101)
    with pytest.raises(StaleCall, match="seq 1 is not above 1"):
        apply(limits, epoch=6, seq=1)


def test_a_governor_whose_clock_was_set_back_is_let_in_once_the_lease_has_run_out() -> None:
    clock = ManualClock()
    limits = book(clock)
    apply(limits, epoch=86_401_000, seq=9)
    clock.advance(4.999)
    with pytest.raises(StaleCall):
        apply(limits, epoch=1_000, seq=1)
    clock.advance(0.001)
    apply(limits, epoch=1_000, seq=1, duty=0.6)
    assert limits.in_force("npu:0").limits == Limits(duty=0.6)
    with pytest.raises(StaleCall, match="seq 1 is not above 1"):
        apply(limits, epoch=1_000, seq=1)


def test_devices_that_work_as_one_have_the_tightest_of_their_limits() -> None:
    limits = LimitBook(ManualClock(), {"npu:0": SAFE, "npu:1": SAFE}, frozenset())
    limits.apply("g", 1, 1, 5.0, {"npu:0": Directive(Limits(duty=0.9)), "npu:1": Directive(Limits(duty=0.3))})
    limits.set_operator("npu:0", Limits(max_batch=2))
    both = limits.in_force("npu:0", "npu:1")
    assert both.limits == Limits(duty=0.3, max_batch=2)
    assert both.binding == {"duty": "governor", "max_batch": "operator"}
    assert limits.in_force("npu:0").limits == Limits(duty=0.9, max_batch=2)
    assert limits.in_force().limits == Limits()


def test_unknown_devices_are_named_and_change_nothing() -> None:
    limits = book(ManualClock())
    assert limits.apply("g", 1, 1, 5.0, {"npu:7": Directive(Limits(duty=0.1))}) == ["npu:7"]
    assert limits.directive("npu:7") is None


@pytest.mark.parametrize("ttl_s", [0.0, 0.999, 60.1, -1.0, float("nan"), float("inf")])
def test_a_lease_out_of_range_is_refused(ttl_s: float) -> None:
    with pytest.raises(ValueError, match="expected 1 to 60 s"):
        book(ManualClock()).apply("g", 1, 1, ttl_s, {})


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.integers(1, 5), st.floats(0, 8)), max_size=30))
def test_in_force_is_never_looser_than_the_operator_or_than_safe_without_a_lease(
    calls: list[tuple[str, int, int, float]],
) -> None:
    clock = ManualClock()
    limits = book(clock)
    limits.set_operator("npu:0", Limits(duty=0.7))
    governed = False
    for governor, epoch, seq, pause_s in calls:
        clock.advance(pause_s)
        try:
            limits.apply(governor, epoch, seq, 5.0, {"npu:0": Directive(Limits(duty=0.9))})
            governed = True
        except (LeaseRefused, StaleCall):
            pass
        duty = limits.in_force("npu:0").limits.duty
        assert duty is not None
        assert duty <= 0.7
        if governed and limits.governor().state == "lost":
            assert duty == SAFE.duty


def test_limits_by_hand_tell_their_age() -> None:
    clock = ManualClock()
    limits = book(clock)
    assert limits.operator_age_s("cpu") is None
    limits.set_operator("cpu", Limits(max_batch=4))
    clock.advance(60)
    assert limits.operator_age_s("cpu") == 60
    assert limits.operator_age_s("npu:0") is None
    limits.set_operator("", Limits(duty=0.5))
    clock.advance(5)
    assert (limits.operator_age_s("cpu"), limits.operator_age_s("npu:0")) == (5, 5)
    limits.set_operator("cpu", Limits(max_batch=2))
    clock.advance(5)
    assert (limits.operator_age_s("cpu"), limits.operator_age_s("npu:0")) == (5, 10)
    limits.set_operator("", Limits())
    assert limits.operator_age_s("cpu") is None
