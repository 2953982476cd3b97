"""The field report: fitted without its fan row, which it then predicts; and what governing the same load gives."""

import pytest

from coldplate_governor.bench import field_fit, field_run
from coldplate_governor.bench.field_fit import FAILED_AT_8, FAN_ROW, FAN_SINK_SHARE, ROWS, FieldModel, fit, that_fit


@pytest.fixture(scope="module")
def model() -> FieldModel:
    return fit()


def test_what_the_docstring_says_the_numbers_imply() -> None:
    told = [row.p99_s * row.tokens_per_s / row.streams for row in ROWS if row.tokens_per_s is not None]
    assert all(69 <= tokens < 71 for tokens in told)
    first, last = ROWS[0], ROWS[-1]
    assert first.tokens_per_s is not None
    assert last.tokens_per_s is not None
    assert last.tokens_per_s / last.streams / first.tokens_per_s == pytest.approx(0.55, abs=0.01)
    assert last.p99_s / 2 > FAN_ROW.p99_s * 1.15, "one halving cannot explain the fan"
    assert first.p99_s / FAN_ROW.p99_s > 1.5, "the chip was slowed at 78 °C already"


def test_the_fit_never_sees_the_fan_row(model: FieldModel) -> None:
    assert FAN_ROW not in ROWS
    assert FAN_ROW.tokens_per_s is None
    assert fit([*ROWS, FAN_ROW]) == model, "a row without throughput tells the fit nothing"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.streams} streams")
def test_the_twin_says_what_was_measured(model: FieldModel, row: field_fit.ReportedRow) -> None:
    run = field_run.reported(model, row.streams)
    assert run.tokens_per_s == pytest.approx(row.tokens_per_s, rel=0.15)
    assert run.p99_s == pytest.approx(row.p99_s, rel=0.15)
    assert run.celsius == pytest.approx(row.celsius, rel=0.15)
    assert run.failed_share == 0.0


def test_the_twin_predicts_the_fan(model: FieldModel) -> None:
    run = field_run.reported(model, 4, FAN_SINK_SHARE)
    assert run.p99_s == pytest.approx(FAN_ROW.p99_s, rel=0.15)
    assert run.celsius == pytest.approx(FAN_ROW.celsius, rel=0.15)
    assert run.halvings == 0


def test_a_fan_as_strong_as_the_report_says_gives_the_latency_it_says(model: FieldModel) -> None:
    run = field_run.reported(model, FAN_ROW.streams, model.fan_for(FAN_ROW.streams, FAN_ROW.celsius))
    assert run.celsius == pytest.approx(FAN_ROW.celsius, abs=0.2)
    assert run.p99_s == pytest.approx(FAN_ROW.p99_s, rel=0.15)


def test_four_streams_run_into_the_halving_and_eight_into_the_memory(model: FieldModel) -> None:
    four, eight = field_run.reported(model, 4), field_run.reported(model, 8)
    assert four.halvings > 0
    assert four.clock / field_run.reported(model, 1).clock == pytest.approx(0.5, rel=0.15)
    assert eight.failed_share == pytest.approx(FAILED_AT_8, rel=0.15)


def test_memory_is_first_come_first_served() -> None:
    assert that_fit([1.0, 1.0, 1.2, 0.8], 3.0) == 3
    assert that_fit([2.0], 1.9) == 0


@pytest.mark.parametrize("streams", [4, 8])
def test_governed_at_82_nothing_fails_and_the_clock_is_never_halved(model: FieldModel, streams: int) -> None:
    run, best = field_run.governed(model, streams), field_run.oracle(model, streams)
    assert run.failed_share == 0.0
    assert run.halvings == 0
    assert (run.refused > 0) == (streams == 8)
    assert run.peak_celsius < 85
    assert 0.95 <= run.tokens_per_s / best.tokens_per_s < 1.03


def test_the_heat_budget_forbids_the_fans_latency_without_a_fan(model: FieldModel) -> None:
    best = field_run.oracle(model, 4)
    assert best.p99_s > FAN_ROW.p99_s
    assert best.tokens_per_s < 4 * model.request_tokens / FAN_ROW.p99_s
