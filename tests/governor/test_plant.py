"""The twin against its own equations, and the law holding it below the cliff in virtual time."""

from dataclasses import replace

import pytest

from coldplate.profile import load_profile
from coldplate_governor.law import Inputs, LawState, decide
from coldplate_governor.twin.plant import DUO_CARD, SINGLE_CARD, Card, CardModel, FirmwareCliff, step_intensity

PROFILE = load_profile("310p-pro")
NO_CLIFF = FirmwareCliff(steps=(), power_off_celsius=1000.0)
CARDS = pytest.mark.parametrize("model", [SINGLE_CARD, DUO_CARD], ids=lambda model: model.name)


@CARDS
@pytest.mark.parametrize("load", [0.0, 0.4, 1.0])
def test_steady_state_is_ambient_plus_power_times_resistance(model: CardModel, load: float) -> None:
    card = Card(replace(model, leakage_per_celsius=0.0), 30.0, cliff=NO_CLIFF)
    card.step(2400, [load] * model.chips)
    watts = model.idle_watts + load * (model.max_watts - model.idle_watts)
    expected = 30 + watts * (model.junction_resistance + model.chips * model.sink_resistance)
    assert card.chips[0].junction_celsius == pytest.approx(expected, abs=0.01)


def test_chips_of_a_duo_card_heat_each_other() -> None:
    alone, together = Card(DUO_CARD, 35.0), Card(DUO_CARD, 35.0)
    alone.step(600, [1.0, 0.0])
    together.step(600, [1.0, 1.0])
    assert together.chips[0].junction_celsius > alone.chips[0].junction_celsius + 5
    assert alone.chips[1].junction_celsius > 35 + DUO_CARD.idle_watts * 0.5


def test_leakage_makes_a_hot_chip_draw_more() -> None:
    cold, hot = Card(SINGLE_CARD, 35.0, 40.0), Card(SINGLE_CARD, 35.0, 88.0)
    for card in (cold, hot):
        card.step(0.1, [1.0])
    assert hot.watts > cold.watts * 1.03


def test_the_firmware_cuts_the_clock_step_by_step_and_lifts_it_late() -> None:
    cliff = FirmwareCliff()
    card = Card(SINGLE_CARD, 35.0, cliff.steps[0][0] + 0.5)
    card.step(0.1, [0.0])
    assert card.chips[0].slowdown == 2.0
    card.heat(cliff.steps[1][0] + 0.5)
    card.step(0.1, [0.0])
    assert card.chips[0].slowdown == 4.0
    card.heat(cliff.release_celsius + 1)
    card.step(1.0, [0.0])
    assert card.chips[0].slowdown == 4.0, "between release and cliff nothing changes"
    card.heat(cliff.release_celsius - 3)
    card.step(cliff.release_after_s - 0.5, [0.0])
    assert card.chips[0].slowdown == 4.0
    card.step(1.0, [0.0])
    assert card.chips[0].slowdown == 1.0
    assert card.chips[0].cliff_events == 2


def test_a_chip_that_stays_too_hot_switches_itself_off() -> None:
    card = Card(SINGLE_CARD, 35.0, 112.0)
    card.step(2.0, [1.0])
    assert not card.chips[0].powered
    card.step(600, [1.0])
    assert card.chips[0].junction_celsius < 60, "it draws nothing"
    card.power_on(0)
    assert card.chips[0].powered


def test_the_shortest_of_steps_is_a_step() -> None:
    card = Card(SINGLE_CARD, 35.0)
    card.step(1e-15, [1.0])
    card.step(0.0, [1.0])
    assert card.chips[0].junction_celsius == pytest.approx(35.0)


def test_prefill_draws_more_than_decode() -> None:
    assert step_intensity(2048) == 1.0
    assert 0.5 < step_intensity(1) < step_intensity(64) < 1.0


@CARDS
@pytest.mark.parametrize("start", [35.0, 60.0, 84.0])
def test_the_governed_twin_stays_below_the_cliff_and_settles_near_the_target(model: CardModel, start: float) -> None:
    card = Card(model, 35.0, start)
    state, peak, late = LawState(), 0.0, []
    for second in range(3600):
        reading = float(round(card.chips[0].junction_celsius))
        state, decided = decide(PROFILE, state, {"npu:0": Inputs(reading, 0.0)}, float(second))
        decision = decided["npu:0"]
        card.step(1.0, [decision.duty] * model.chips)
        peak = max(peak, card.chips[0].junction_celsius)
        if second >= 1800:
            late.append((card.chips[0].junction_celsius, decision.duty))
    assert card.chips[0].cliff_events == 0
    assert peak < PROFILE.temperature.firmware_cliff_celsius
    assert all(abs(celsius - PROFILE.temperature.target_celsius) < 1.5 for celsius, _ in late)
    assert max(duty for _, duty in late) - min(duty for _, duty in late) < 0.1, "it does not hunt"


def test_without_the_governor_the_same_card_falls_off_the_cliff() -> None:
    card = Card(SINGLE_CARD, 35.0, 84.0)
    card.step(3600, [1.0])
    assert card.chips[0].cliff_events > 0


def test_duty_comes_back_when_the_load_stops() -> None:
    card, state, duties = Card(SINGLE_CARD, 35.0, 84.0), LawState(), []
    for second in range(240):
        reading = float(round(card.chips[0].junction_celsius))
        state, decided = decide(PROFILE, state, {"npu:0": Inputs(reading, 0.0)}, float(second))
        decision = decided["npu:0"]
        card.step(1.0, [decision.duty if second < 30 else 0.0])
        duties.append(decision.duty)
    assert min(duties[:15]) < 0.8
    assert duties[-1] == 1.0
    assert decision.mode == "NOMINAL"
    assert not decision.limits
