"""The parts of the board's benchmarks that are not the board: oracle, tally, report, plots."""

from pathlib import Path

import pytest
from board_oracle import oracle_seconds
from board_plots import draw
from board_runs import Run, Trace, report
from modelled_service import Ended, Tally

from coldplate_governor.twin.plant import SINGLE_CARD, step_intensity


def test_an_oracle_in_cold_air_never_slows_down() -> None:
    assert oracle_seconds(SINGLE_CARD, -20.0, 20.0, 85.0, 300.0, 1.0, 16) == pytest.approx(300.0)


def test_an_oracle_in_hot_air_ends_at_what_the_heatsink_can_carry() -> None:
    long, longer = (oracle_seconds(SINGLE_CARD, 45.0, 84.0, 85.0, seconds, 1.0, 16) for seconds in (4000.0, 5000.0))
    share = (longer - long) / 1000.0
    watts = (85.0 - 45.0) / (SINGLE_CARD.sink_resistance + SINGLE_CARD.junction_resistance)
    watts /= 1 + SINGLE_CARD.leakage_per_celsius * 25.0
    span = SINGLE_CARD.max_watts - SINGLE_CARD.idle_watts
    assert share == pytest.approx((watts - SINGLE_CARD.idle_watts) / span / step_intensity(16), rel=0.01)


def test_a_hotter_limit_or_a_cooler_start_allows_more() -> None:
    def seconds(start: float, limit: float) -> float:
        return oracle_seconds(SINGLE_CARD, 45.0, start, limit, 600.0, 1.0, 16)

    assert seconds(84.0, 80.0) < seconds(84.0, 85.0) < seconds(84.0, 90.0)
    assert seconds(84.0, 85.0) < seconds(60.0, 85.0)


def test_a_stream_that_only_looks_complete_is_a_wrong_end() -> None:
    ends = [
        Ended(1.0, "OK", 10, true=True, whole=True),
        Ended(2.0, "ABORTED", 4, true=True, whole=False),
        Ended(3.0, "OK", 4, true=True, whole=False),
        Ended(4.0, "ABORTED", 4, true=False, whole=False),
    ]
    tally = Tally(deltas=[(0.5, 1), (1.5, 2), (2.5, 4)], ended=ends)
    assert tally.wrong_ends() == ends[2:]
    assert tally.tokens(1.0, 2.5) == 2
    assert tally.statuses(since_s=2.0) == {"ABORTED": 2, "OK": 1}


def run(name: str, *, events: int = 0, gap: float = 60.0, tokens: int = 970) -> Run:
    trace = Trace([0.0, 1.0, 2.0], [80.0, 84.0, 85.0], [1.0, 1.0, 0.5], [1.0, 0.9, 0.8], ["", "", ""])
    cuts = [gap * (0.5 + 0.0005 * i) for i in range(999)]
    return Run(
        name, 85.0, 3.0, tokens, 1000.0, events, 55.0, gap, 84.0, 85.0, 85.0, {"OK": 3}, 0, trace, [1.0] * 3, cuts
    )


@pytest.mark.parametrize(
    ("ours", "good"),
    [
        (run("governor"), True),
        (run("governor", events=1), False),
        (run("governor", gap=300.0), False),
        (run("governor", tokens=940), False),
    ],
)
def test_the_verdict_is_that_of_the_figures(ours: Run, good: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert report([run("firmware", events=20, gap=220.0), ours], (290.0, 0.97)) is good
    table = capsys.readouterr().out
    assert "| governor | 85 | 84, 85, 85 |" in table
    assert ("yes" in table) is good


def test_plots_are_written(tmp_path: Path) -> None:
    paths = draw([run("firmware"), run("script"), run("governor")], 85.0, 90.0, tmp_path)
    assert [path.name for path in paths] == ["board-runs.png", "board-gaps.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
