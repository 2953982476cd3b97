"""The digital twin: sensors that lie as told, loads that add up, plants that can be governed, runs that repeat."""

import math
from dataclasses import replace
from random import Random

import pytest

from coldplate_governor.bench.baselines import FirmwareOnly
from coldplate_governor.bench.metrics import hottest
from coldplate_governor.bench.suite import run_baseline, run_oracle, run_ours
from coldplate_governor.twin import traces
from coldplate_governor.twin.control import Command
from coldplate_governor.twin.load import PREFILL_BUDGET_TOKENS, Engine, LoadModel
from coldplate_governor.twin.plant import Card, CardModel
from coldplate_governor.twin.plants import KINDS, cliff_at, draw, nominal, sustainable_duty
from coldplate_governor.twin.sensor import FaultKind, SensorFault, SensorModel, TemperatureSensor
from coldplate_governor.twin.simulate import STEP_S, lost_contact_resistance

QUIET = SensorModel(noise_celsius=0.0, delay_s=2)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def read(sensor: TemperatureSensor, temperatures: list[float]) -> list[float | None]:
    return [sensor.read(float(second), value) for second, value in enumerate(temperatures)]


def test_a_sensor_is_late_and_in_whole_degrees() -> None:
    assert read(TemperatureSensor(QUIET, Random(0)), [50.4, 60.6, 70.0, 80.0]) == [50, 50, 50, 61]


@pytest.mark.parametrize(
    ("kind", "said"), [("zeros", 0.0), ("sentinel", 127.0), ("dead", None), ("jump", 65.0), ("frozen", 50.0)]
)
def test_a_faulty_sensor_says_what_the_fault_says(kind: FaultKind, said: float | None) -> None:
    sensor = TemperatureSensor(replace(QUIET, delay_s=0), Random(0), SensorFault(kind, 1.0, 3.0))
    assert read(sensor, [50.0, 80.0, 80.0, 80.0]) == [50.0, said, said, 80.0]


def test_a_full_engine_makes_the_tokens_its_step_times_allow() -> None:
    model = LoadModel(step_s=0.05, per_stream_s=0.001, per_prompt_token_s=0.0005, prompt_tokens=100, output_tokens=100)
    engine = Engine(model)
    tokens = 0.0
    for second in range(400):
        engine.live(1.0, 1.0, 1.0, 1.0, PREFILL_BUDGET_TOKENS, 10_000, True)
        tokens += engine.tokens if second >= 200 else 0.0
    # 16 streams decode, and each step prefills the 16 prompt tokens that replace what ends in it.
    step_s = 0.05 + 16 * 0.001 + 16 * 0.0005
    assert tokens / 200 == pytest.approx(16 / step_s, rel=0.01)
    assert engine.running == pytest.approx(16, abs=0.1)
    assert model.streams_per_s == pytest.approx(tokens / 200 / 100, rel=0.01)


def test_duty_and_clock_take_tokens_in_proportion() -> None:
    made = {}
    for duty, clock in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.5)):
        engine = Engine(LoadModel())
        for _ in range(300):
            engine.live(1.0, duty, clock, 1.0, PREFILL_BUDGET_TOKENS, 10_000, True)
        made[duty, clock] = engine.tokens
    assert made[0.5, 1.0] == pytest.approx(made[1.0, 1.0] / 2, rel=0.01)
    assert made[1.0, 0.5] == pytest.approx(made[1.0, 1.0] / 2, rel=0.01)


def test_without_prefill_streams_end_and_none_begin() -> None:
    engine = Engine(LoadModel())
    for _ in range(60):
        engine.live(1.0, 1.0, 1.0, 1.0, PREFILL_BUDGET_TOKENS, 10_000, True)
    full, load = engine.running, 1.0
    for _ in range(30):
        load = engine.live(1.0, 1.0, 1.0, 1.0, 0, 10_000, True)
    assert engine.running < full / 2
    assert load == pytest.approx(0.8), "decode alone draws less"
    for _ in range(600):
        load = engine.live(1.0, 1.0, 1.0, 1.0, 0, 10_000, False)
    assert load == engine.tokens == 0.0


def test_arrivals_are_served_queued_or_refused_and_none_gets_lost() -> None:
    model = LoadModel(max_waiting=20)
    engine = Engine(model, waiting=0.0)
    came = tokens = 0.0
    for second in range(2000):
        streams = 3 if second < 200 else 0
        came += streams
        engine.arrive(streams)
        engine.live(1.0, 1.0, 1.0, 1.0, PREFILL_BUDGET_TOKENS, 10_000, True)
        tokens += engine.tokens
        assert engine.waiting <= 20
        assert engine.running <= model.max_streams + 1e-9
    assert engine.refused > 0
    assert tokens / model.output_tokens + engine.refused == pytest.approx(came, rel=0.01)


@EVERY_KIND
def test_drawn_plants_need_a_governor_and_can_be_governed(kind: str) -> None:
    middle = nominal(kind)
    for index in range(20):
        plant, _ = draw(kind, index, seed=3)
        assert plant == draw(kind, index, seed=3)[0], "the same seed gives the same plant"
        target = plant.profile.temperature.target_celsius
        assert plant.profile.levers.min_duty < sustainable_duty(plant, plant.ambient_celsius + 12, target) <= 0.95
        assert 0.6 <= plant.card.sink_resistance / middle.card.sink_resistance <= 1.4
        assert 0.6 <= plant.card.idle_watts / middle.card.idle_watts <= 1.4
    assert draw(kind, 0, seed=3)[0] != draw(kind, 0, seed=4)[0]


@EVERY_KIND
def test_the_duty_called_sustainable_ends_at_the_target(kind: str) -> None:
    plant, _ = draw(kind, 1, seed=0)
    ambient, target = plant.ambient_celsius + 12, plant.profile.temperature.target_celsius
    card = Card(plant.card, ambient, cliff=plant.cliff)
    card.step(7200, [0.8 * sustainable_duty(plant, ambient, target)] * plant.card.chips, STEP_S)
    assert card.chips[0].junction_celsius == pytest.approx(target, abs=0.3)


@EVERY_KIND
def test_without_its_heatsink_only_an_idle_chip_stays_cool(kind: str) -> None:
    plant = nominal(kind)
    ambient, target = plant.ambient_celsius, plant.profile.temperature.target_celsius
    bare = replace(plant.card, junction_resistance=lost_contact_resistance(plant))
    idle, busy = Card(bare, ambient, cliff=plant.cliff), Card(bare, ambient, 80.0, cliff=plant.cliff)
    idle.step(3600, [0.0] * bare.chips, STEP_S)
    assert idle.chips[0].junction_celsius < target - 5
    before = busy.chips[0].junction_celsius
    busy.step(2.0, [1.0] * bare.chips, STEP_S)
    assert busy.chips[0].junction_celsius > before + 2, "more than a degree a second"


def test_the_cliff_halves_dynamic_power_and_then_halves_it_again() -> None:
    plant = nominal("card72")
    for excess, share in ((0.1, 1 / 2), (2.1, 1 / 4), (4.1, 1 / 8)):
        card = Card(replace(plant.card, leakage_per_celsius=0.0), 35.0, 90 + excess, cliff_at(90.0, 100.0))
        card.step(STEP_S, [0.0], STEP_S)
        card.step(STEP_S, [1.0], STEP_S)
        assert card.watts == pytest.approx(18 + 54 * share)


def test_a_work_level_slows_the_chip_and_saves_more_power_than_speed() -> None:
    card = Card(nominal("edge-levels").card, 40.0)
    card.chips[0].work_level = 0.5
    card.step(STEP_S, [1.0], STEP_S)
    assert card.chips[0].slowdown == 2.0
    assert card.watts == pytest.approx(5 + 17 * 0.5 ** (1 / 0.7))


@EVERY_KIND
def test_the_oracle_holds_its_limit_and_nobody_who_holds_it_does_more(kind: str) -> None:
    plant, trace = nominal(kind), traces.steady()
    limit = plant.profile.temperature.target_celsius
    run = run_oracle(plant, trace, 0, limit)
    peak = max(hottest(run))
    assert limit - 0.2 < peak < limit + 0.6, "the step to cooler and hotter air is the only surprise"
    others = [run_baseline(plant, trace, 0, name) for name in ("bang-bang 3 °C", "step_wise", "IPA")]
    assert all(other.tokens < run.tokens * 1.005 for other in others)


def test_two_runs_of_the_same_seed_are_the_same_and_of_another_are_not() -> None:
    plant, trace = nominal("duo"), replace(traces.square(), seconds=900)
    first, again, other = (run_ours(plant, trace, seed) for seed in (1, 1, 2))
    for one, two in zip(first.chips, again.chips, strict=True):
        assert (one.celsius, one.duty, one.tokens, one.modes) == (two.celsius, two.duty, two.tokens, two.modes)
    assert first.chips[0].read_celsius != other.chips[0].read_celsius


def test_a_chip_that_has_switched_itself_off_makes_no_tokens() -> None:
    plant = nominal("card72")
    weak = replace(plant, cliff=replace(plant.cliff, steps=(), power_off_celsius=70.0))
    run = run_baseline(weak, replace(traces.steady(), seconds=2000), 0, "firmware only")
    assert run.chips[0].powered_off
    assert run.chips[0].tokens[-1] == 0.0
    assert math.isnan(run.chips[0].gap_s[-1]) or run.chips[0].celsius[-1] < 70


def test_bursts_and_lulls_average_to_what_was_asked_for() -> None:
    trace = traces.bursty(5, per_s=0.5)
    assert trace.arrivals is not None
    assert 0.2 < sum(trace.arrivals) / len(trace.arrivals) < 0.9
    minutes = [sum(trace.arrivals[at : at + 60]) / 60 for at in range(0, 3600, 60)]
    assert max(minutes) > 0.7
    assert min(minutes) < 0.25
    assert traces.bursty(5, 0.5).arrivals == trace.arrivals


def test_a_policy_that_asks_for_everything_asks_for_everything() -> None:
    command = Command(duty=0.3)
    FirmwareOnly().act(0, 120.0, command)
    assert command.duty == 1.0


def test_longer_euler_steps_change_little() -> None:
    model = CardModel("test", 1, 5.0, 22.0, 0.6, 12.0, 2.0, 250.0)
    fine, coarse = Card(model, 40.0), Card(model, 40.0)
    for second in range(600):
        load = 1.0 if second % 60 < 40 else 0.1
        fine.step(1.0, [load], 0.01)
        coarse.step(1.0, [load], STEP_S)
        assert coarse.chips[0].junction_celsius == pytest.approx(fine.chips[0].junction_celsius, abs=0.3)
