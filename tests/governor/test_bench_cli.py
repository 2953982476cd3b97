"""``coldplate-governor bench`` as a person runs it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "coldplate_governor.main", "bench"]


def bench(*flags: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.slow
def test_the_quick_run_passes_and_writes_what_was_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = bench("--quick", "--json", str(tmp_path / "out.json"), "--plots", str(tmp_path / "plots"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every row that was run passes." in done.stdout
    out = json.loads((tmp_path / "out.json").read_text())
    assert {row["verdict"] for row in out["rows"]} == {"pass", "not run"}
    assert {row["verdict"] for row in out["field_report"]["rows"]} == {"pass"}
    assert out["seed"] == 0
    firmware = [line for line in out["comparison"] if line["controller"] == "firmware only"]
    assert firmware[0]["firmware_events_per_h"] > 0, "the plants do throttle when nobody governs"
    pictures = sorted((tmp_path / "plots").iterdir())
    assert pictures
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert "card72/nominal: contact lost" in done.stderr, "progress is shown"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--plants", "-1"], "--plants is -1: expected 0 to 1000"),
        (["--json", "/nowhere/x.json"], "--json is /nowhere/x.json: expected a file in a folder that exists"),
        (["--only", "weather"], "invalid choice"),
        (["--seed", "x"], "invalid int value"),
    ],
)
def test_bad_flags_end_with_code_2_and_one_line(flags: list[str], said: str) -> None:
    done = bench(*flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_ctrl_c_ends_it_with_one_line() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, "--only", "law"], stdout=pipe, stderr=pipe, text=True) as run:
        assert run.stderr is not None
        first = run.stderr.readline()
        run.send_signal(signal.SIGINT)
        rest = run.stderr.read()
        assert run.wait(timeout=30) == 130
    assert "%" in first
    assert rest.strip().splitlines()[-1] == "coldplate-governor bench: interrupted, nothing was written"
    assert "Traceback" not in rest
