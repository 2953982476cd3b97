"""Virtual token counters: turns by service, nothing saved up by being away, and nobody passed for ever."""

from hypothesis import given
from hypothesis import strategies as st

from coldplate_server.admission.fair_share import FairShare


def serve(share: FairShare, tenant: str, cost: float) -> None:
    """One stream that waits, starts and ends."""
    share.join(tenant)
    share.charge(tenant, cost)
    share.stop_waiting(tenant)
    share.leave(tenant)


def test_who_comes_back_is_lifted_to_those_who_waited() -> None:
    share = FairShare(10)
    share.join("busy")
    share.charge("busy", 1000)
    share.join("new")
    assert share.counter("new") == share.counter("busy") == 1000


def test_who_had_more_keeps_it_while_others_wait() -> None:
    share = FairShare(10)
    share.join("poor")
    serve(share, "rich", 500)
    assert share.counter("rich") > share.counter("poor")
    share.join("rich")
    assert share.counter("rich") == 500


def test_an_empty_queue_forgives_what_nobody_was_denied() -> None:
    share = FairShare(10)
    serve(share, "night shift", 1_000_000)
    share.join("night shift")
    share.join("morning")
    assert share.counter("morning") == share.counter("night shift")


def test_an_endless_row_of_new_tenants_passes_nobody_for_ever() -> None:
    """Each comes before the one before it has gone, so that the smallest counter that waits alone would never move."""
    share = FairShare(10)
    share.join("patient")
    share.join("new 0")
    share.charge("patient", 100)
    passed = 0
    while share.counter(f"new {passed}") < share.counter("patient"):
        share.join(f"new {passed + 1}")
        share.charge(f"new {passed}", 10)
        share.stop_waiting(f"new {passed}")
        share.leave(f"new {passed}")
        passed += 1
        assert passed <= 40, "three wait in turn: 100 ahead is made good within 300 served"


def test_what_was_not_needed_is_given_back() -> None:
    share = FairShare(10)
    share.join("a")
    share.charge("a", 100)
    share.charge("a", -40)
    assert share.counter("a") == 60


def test_absent_tenants_are_remembered_up_to_a_number_and_only_with_debt() -> None:
    share = FairShare(3)
    share.join("waits")
    for number in range(50):
        serve(share, f"t{number}", 100 + number)
    assert len(share) <= 4
    assert share.counter("t49") > share.counter("t0") == share.counter("never seen")
    share.stop_waiting("waits")
    share.leave("waits")
    serve(share, "t49", 1)
    assert len(share) <= 3


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.integers(1, 50)), max_size=120))
def test_of_two_that_always_wait_neither_gets_far_ahead(others: list[tuple[str, int, int]]) -> None:
    """Slots are given by smallest counter; the bound is the most one slot's worth can cost."""
    share = FairShare(4)
    for tenant in ("x", "y"):
        share.join(tenant)
        share.join(tenant)  # one waits on, whatever starts
    served = {"x": 0, "y": 0}
    gap = 0
    for name, joins, cost in others:
        for _ in range(joins):
            share.join(name)
            share.stop_waiting(name)
            share.leave(name)
        turn = min(("x", "y"), key=share.counter)
        share.charge(turn, cost)
        served[turn] += cost
        gap = max(gap, abs(served["x"] - served["y"]))
    assert gap <= 50
