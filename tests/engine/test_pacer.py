"""The duty limit as arithmetic."""

import pytest

from coldplate_engine.pacer import DutyPacer


def test_rest_follows_the_duty() -> None:
    pacer = DutyPacer()
    pacer.set_duty(0.25)
    pacer.worked(1.0)
    assert pacer.rest_s() == pytest.approx(3.0)
    pacer.rested(1.0)
    assert pacer.rest_s() == pytest.approx(2.0)


def test_a_new_duty_acts_on_what_is_still_owed() -> None:
    pacer = DutyPacer()
    pacer.set_duty(0.1)
    pacer.worked(1.0)
    pacer.set_duty(0.5)
    assert pacer.rest_s() == pytest.approx(1.0)
    pacer.set_duty(None)
    assert pacer.rest_s() == 0.0
    pacer.set_duty(0.1)
    assert pacer.rest_s() == 0.0


def test_long_idleness_earns_no_credit_for_long_bursts() -> None:
    pacer = DutyPacer()
    pacer.set_duty(0.5)
    pacer.rested(100.0)
    pacer.worked(1.0)
    assert pacer.rest_s() > 0.97
