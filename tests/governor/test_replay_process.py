"""A real governor's recording, through kill -9 and a full disk, and its replay as a program."""

import json
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldplate_governor.board.client import BoardClient
from governor.fake_control import FakeControl
from governor.test_governor_process import duty, load
from support import processes
from support.processes import Process, free_port, until


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="coldplate-rec-") as path:  # short: a socket path has 108 bytes
        yield Path(path)


def governor(control: FakeControl, folder: Path, *args: str) -> Process:
    return Process("coldplate-governor", [f"--control={control.address}", *args], folder)


def replay(file: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return processes.run("coldplate-governor", "replay", str(file), *flags)


@pytest.mark.slow
def test_a_governed_board_replays_bit_for_bit_through_a_kill(folder: Path) -> None:
    record = folder / "record.jsonl"
    with (
        processes.board("--count=2", "--start-temperature-celsius=84") as (_, board),
        FakeControl(folder, known=("cpu", "npu:0", "npu:1")) as control,
        BoardClient(board) as client,
    ):
        flags = (f"--board={board}", f"--record={record}")
        with governor(control, folder, *flags) as first:
            load(client, control, until_duty=0.8)
            client.poke("lie", 0, celsius=0)
            seen = len(control.requests)
            control.wait_for("rounds with a lying sensor", lambda request: request.seq > seen + 7, after=seen)
            client.poke("restore", 0)
            first.signal(signal.SIGKILL)
            first.wait()
        with record.open("ab") as stream:
            stream.write(b'{"kind":"tick","at":12')  # as a kill within a write leaves it
        before = len(control.requests)
        with governor(control, folder, *flags) as second:
            control.wait_for("the second start's rounds", lambda request: request.seq >= 5, after=before)
            assert second.stop() == 0
        low = duty(control.requests[before - 1])
    done = replay(record, "--json", "--changes")
    assert done.returncode == 0, done.stdout
    body = json.loads(done.stdout)
    assert (body["starts"], body["difference"], body["skipped_ticks"]) == (2, None, 0)
    assert body["ticks"] == body["identical_ticks"] > 10
    assert body["changes"] == body["complete_changes"] > 3
    assert [item["cut"] for item in body["damage"]] == [True]
    assert low < 1
    plain = replay(record)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert plain.stdout.endswith("every decision comes out the same, bit for bit\n")
    other = replay(record, "--profile=npu:0=310p-duo")
    assert (other.returncode, other.stderr) == (0, "")
    assert "npu:0:" in other.stdout


def test_a_full_disk_costs_the_record_and_nothing_else(folder: Path) -> None:
    port = free_port()
    flags = ("--device=cpu", "--record=/dev/full", f"--metrics-listen=127.0.0.1:{port}")
    with FakeControl(folder) as control, governor(control, folder, *flags) as process:
        control.wait_for("it governs", lambda request: request.seq >= 4)
        until("it says so", lambda: "ticks are not recorded" in process.log())
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
        dropped = next(
            line for line in metrics.splitlines() if line.startswith("coldplate_governor_record_dropped_total")
        )
        assert float(dropped.split()[1]) >= 1
        assert process.log().count("ticks are not recorded") == 1
        assert "No space left on device" in process.log()
        assert process.stop() == 0


def test_by_default_it_records_in_the_users_state_folder_under_its_name(folder: Path) -> None:
    with FakeControl(folder) as control, governor(control, folder, "--device=cpu", "--name=box-7") as process:
        control.wait_for("it governs", lambda request: request.seq >= 3)
        assert process.stop() == 0
    file = folder / "coldplate" / "governor" / "box-7.jsonl"
    assert file.stat().st_mode & 0o077 == 0o040
    assert replay(file).returncode == 0


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--record=/no/such/folder/r.jsonl", "/no/such/folder/r.jsonl: No such file or directory"),
        ("--record-size-mib=0", "record-size-mib"),
    ],
)
def test_a_record_that_cannot_be_kept_is_said_at_start(flag: str, expected: str) -> None:
    done = processes.run("coldplate-governor", "--control=unix:/none", flag)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_something_else_is_not_recorded_over(folder: Path) -> None:
    (folder / "notes.txt").write_text("precious\n")
    done = processes.run("coldplate-governor", f"--control=unix:{folder}/none", f"--record={folder}/notes.txt")
    assert done.returncode == 2
    assert "notes.txt: is no recording of a governor, and is left as it is: name another file" in done.stderr
    assert (folder / "notes.txt").read_text() == "precious\n"


def test_replay_of_nothing_says_what_is_missing(folder: Path) -> None:
    done = replay(folder / "none.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"coldplate-governor replay: {folder}/none.jsonl: there is no such file\n"
