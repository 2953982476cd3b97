"""The comparison with other engines, with peers that only pretend."""

import json
import sys
from pathlib import Path

import peers
import psutil
import pytest
from peer_models import BenchModel
from peer_report import Floor, interval, judge, table

ROOT = Path(__file__).parents[2]


def test_interval_holds_the_median_and_repeats() -> None:
    found = interval([3.0, 1.0, 2.0, 5.0, 4.0])
    assert found.median == 3.0
    assert 1.0 <= found.low <= 3.0 <= found.high <= 5.0
    assert interval([3.0, 1.0, 2.0, 5.0, 4.0]) == found
    assert str(interval([2.0])) == "2 (2–2)"


def test_a_floor_is_held_against_the_fastest_way_to_run_the_peer() -> None:
    rates = {"ours": {"c": [30.0] * 5}, "peer slow": {"c": [10.0] * 5}, "peer fast": {"c": [20.0] * 5}}
    peer_of = {"ours": "ours", "peer slow": "peer", "peer fast": "peer"}
    low, high = judge(rates, [Floor("ours", "peer", "c", 1.6), Floor("ours", "peer", "c", 1.4)], peer_of)
    assert (low.against, low.ratio.median) == ("peer fast", 1.5)
    assert not low.met
    assert high.met
    assert "LOW" in str(low)
    assert judge({"ours": {"c": [1.0]}}, [Floor("ours", "peer", "c", 1)], {"ours": "ours"}) == []


def test_a_cell_nobody_measured_is_a_dash() -> None:
    assert table({"ours": {"a": [1.0]}}, ["a", "b"]).splitlines()[-1] == "| ours | 1 (1–1) | – |"


def test_rounds_are_kept_and_a_peer_that_dies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "DRIVERS", Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "benchmarks" / "peer_drivers"))

    def contender(name: str, **job: object) -> peers.Contender:
        return peers.Contender(name, name, "fake", lambda: Path(sys.executable), lambda model: job)

    model = BenchModel("tiny", tmp_path, tmp_path / "m.gguf", "Q4_1", 100)
    run = peers.Run(model, 1, tmp_path)
    cells = [cell for cell in peers.CELLS if cell.name in ("decode-8", "prefill")]
    contenders = [
        contender("good", rate=100.0),
        contender("never", rate=1.0, fails="start"),
        contender("dies", rate=50.0, fails="prefill"),
    ]
    run.go(contenders, cells, rounds=3, starts=2)
    assert run.rates["good"]["decode-8"] == pytest.approx([100.0] * 3)
    assert run.rates["good"]["prefill"] == pytest.approx([100.0] * 3)
    assert len(run.start_s["good"]) == 2
    assert "no start today" in run.missing["never"]
    assert run.missing["dies"].startswith("prefill: ended with code 1: no prefill today")
    assert not [child for child in psutil.Process().children() if "fake_driver" in " ".join(child.cmdline())]
    assert not peers.report(run, cells, {"read_gb_s": 1.0, "f32_gflop_s": 1.0}, tmp_path)
    kept = json.loads((tmp_path / "tiny.json").read_text())
    assert kept["missing"].keys() == {"never", "dies"}
    assert (tmp_path / "tiny.png").stat().st_size > 0
