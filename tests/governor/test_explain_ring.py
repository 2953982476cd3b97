"""The file of a recording: bounded, whole after every kind of end, and no burden to the loop."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog

from coldplate_governor.explain.encoder import TickEncoder
from coldplate_governor.explain.place import default_file, open_recorder
from coldplate_governor.explain.recorder import Recorder
from coldplate_governor.explain.recording import Damage, Entry, NoRecording, files_of, last_moment, read
from coldplate_governor.explain.replay import Replay, ReplayReport
from coldplate_governor.explain.ring import MIN_BYTES, RingFile, RingUnusable
from coldplate_governor.explain.tick import Tick
from governor.law_run import law_run
from support.processes import until

TICKS = list(law_run(400))


def record(path: Path, ticks: list[Tick], epoch: int = 1, size: int = MIN_BYTES) -> Recorder:
    """Everything written, and the file closed."""
    recorder = Recorder(RingFile(path, size), epoch)
    for tick in ticks:
        recorder.tick(tick)
        if recorder.counts.recorded + recorder.counts.dropped < recorder.handed - 400:
            until("the writer keeps up", lambda: recorder.counts.recorded >= recorder.handed - 100)
    recorder.close()
    return recorder


def replayed(path: Path) -> ReplayReport:
    replay = Replay()
    for _ in replay.run(read(path)):
        pass
    return replay.report


def test_what_is_recorded_replays(tmp_path: Path) -> None:
    counts = record(tmp_path / "r.jsonl", TICKS, size=4 * MIN_BYTES).counts
    assert (counts.recorded, counts.dropped) == (400, 0)
    assert counts.bytes == (tmp_path / "r.jsonl").stat().st_size
    report = replayed(tmp_path / "r.jsonl")
    assert (report.ticks, report.identical, report.difference, report.damage) == (400, 400, None, [])
    assert last_moment(tmp_path / "r.jsonl") == TICKS[-1].now_s


def test_the_size_is_bounded_and_what_is_left_replays(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    ticks = list(law_run(3000))
    counts = record(path, ticks).counts
    sizes = [file.stat().st_size for file in files_of(path)]
    assert counts.bytes > MIN_BYTES, "it was turned over"
    assert len(sizes) == 2
    assert sum(sizes) <= MIN_BYTES
    assert counts.dropped == 0
    report = replayed(path)
    assert report.difference is None
    assert report.ticks == report.identical > 200
    assert report.last_s == ticks[-1].now_s
    assert sorted(item.name for item in tmp_path.iterdir()) == ["r.jsonl", "r.jsonl.1"]


def test_a_start_goes_on_in_the_file_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    record(path, TICKS[:50], epoch=1)
    record(path, list(law_run(30)), epoch=2)
    report = replayed(path)
    assert (report.starts, report.identical, report.damage) == (2, 80, [])


@pytest.mark.parametrize("cut", [2, 20, 200])
def test_a_kill_in_the_middle_of_a_line_costs_that_line(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "r.jsonl"
    record(path, TICKS[:50])
    os.truncate(path, path.stat().st_size - cut)
    report = replayed(path)
    assert report.identical == 49
    assert [damage.cut for damage in report.damage] == [True]
    assert not report.damaged
    record(path, TICKS[:20], epoch=2)
    report = replayed(path)
    assert (report.identical, report.starts, report.damaged, report.difference) == (69, 2, False, None)


def test_a_kill_between_the_renames_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    record(path, TICKS[:50])
    path.rename(tmp_path / "r.jsonl.1")
    (tmp_path / "r.jsonl.new").touch()
    assert replayed(path).identical == 50
    record(path, TICKS[:20], epoch=2)
    assert replayed(path).identical == 70


class FullDisk:
    """``os.write`` for a disk that has room for ``room`` bytes; ``cuts`` tells whether files can be cut back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cuts: bool = True) -> None:
        self.room: float = float("inf")
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)
        if not cuts:
            monkeypatch.setattr(os, "ftruncate", self._refuse)

    def write(self, descriptor: int, data: bytes) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(descriptor, data[: int(min(self.room, len(data)))])
        self.room -= written
        return written

    def _refuse(self, *_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("cuts", [True, False])
def test_a_full_disk_costs_the_ticks_it_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuts: bool
) -> None:
    path = tmp_path / "r.jsonl"
    disk = FullDisk(monkeypatch, cuts)
    recorder = Recorder(RingFile(path, MIN_BYTES), 1)

    def put(ticks: list[Tick]) -> None:
        for tick in ticks:
            recorder.tick(tick)
        until("all is dealt with", lambda: recorder.counts.recorded + recorder.counts.dropped == recorder.handed)

    with structlog.testing.capture_logs() as said:
        put(TICKS[:100])
        disk.room = 700  # in the middle of a line
        put(TICKS[100:200])
        disk.room = float("inf")
        put(TICKS[200:300])
    recorder.close()
    dropped = recorder.counts.dropped
    assert 90 <= dropped <= 100
    assert [line["event"] for line in said] == ["ticks are not recorded", "ticks are recorded again"], "said once"
    assert said[1]["lost"] == dropped
    report = replayed(path)
    assert (report.identical, report.lost, report.difference) == (300 - dropped, dropped, None)
    assert not report.damaged


def test_a_disk_that_hangs_never_holds_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    release = threading.Event()
    write = os.write

    def hang(descriptor: int, data: bytes) -> int:
        release.wait(20)
        return write(descriptor, data)

    recorder = Recorder(RingFile(path, MIN_BYTES), 1)
    monkeypatch.setattr(os, "write", hang)
    ticks = list(law_run(700))
    for tick in ticks:
        recorder.tick(tick)
    assert recorder.counts.dropped > 100, "they were dropped, and nobody waited"
    release.set()
    until("the writer is through", lambda: recorder.counts.recorded + recorder.counts.dropped == 700)
    recorder.tick(ticks[-1])
    recorder.close()
    report = replayed(path)
    assert report.difference is None
    assert report.lost == recorder.counts.dropped
    assert report.identical == recorder.counts.recorded > 512


def test_two_governors_do_not_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = Recorder(RingFile(path, MIN_BYTES), 1)
    with pytest.raises(RingUnusable, match="another governor records there: give this one another --record"):
        RingFile(path, MIN_BYTES)
    first.close()
    RingFile(path, MIN_BYTES).close()


@pytest.mark.parametrize("content", [b"precious\n", b"\0\1\2" * 3000, b'{"kind":"tick"}\n'])
def test_a_file_that_is_no_recording_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(RingUnusable, match="is no recording of a governor"):
        RingFile(path, MIN_BYTES)
    assert path.read_bytes() == content


def test_where_it_is_recorded_and_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDPLATE_STATE", str(tmp_path))
    assert default_file("a/../b") == tmp_path / "governor" / "a____b.jsonl"
    assert open_recorder("off", 1, "g", 1) is None
    with structlog.testing.capture_logs() as said:
        first = open_recorder(None, 1, "g", 1)
        assert first is not None
        assert open_recorder(None, 1, "g", 2) is None, "the default place is taken: governed without a record"
        first.close()
    assert [line["event"] for line in said] == ["decisions are recorded", "decisions are not recorded"]
    with pytest.raises(RingUnusable, match="No such file or directory"):
        open_recorder(str(tmp_path / "none" / "r.jsonl"), 1, "g", 1)


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_lines_that_are_missing_or_damaged_are_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    record(path, TICKS[:200])
    whole = lines_of(path)
    path.write_bytes(b"".join(whole[:100] + whole[101:]))
    assert [f"{item.place} {item.problem}" for item in read(path) if isinstance(item, Damage)] == [
        "r.jsonl line 101 follows on lines that are missing"
    ]
    for bad, problem in (
        (whole[100].replace(b'"at":5', b'"at":6', 1), "does not fit its checksum"),
        (b"\n", "has no checksum at its end"),
        (whole[100][:40] + b"\n", "has no checksum at its end"),
    ):
        path.write_bytes(b"".join([*whole[:100], bad, *whole[101:]]))
        report = replayed(path)
        assert [item.line for item in report.damage] == [101]
        assert report.damage[0].problem == problem
        assert report.damaged
        assert report.difference is None
        assert 96 <= report.identical < 199, "the next state lets it go on"
        assert report.identical + report.skipped == 199


def test_nothing_is_read_from_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoRecording, match="there is no such file"):
        list(read(tmp_path / "none"))
    (tmp_path / "empty").touch()
    assert list(read(tmp_path / "empty")) == []
    assert last_moment(tmp_path / "empty") is None


def test_a_file_begins_with_all_that_a_replay_needs(tmp_path: Path) -> None:
    encoder = TickEncoder(epoch=7)
    path = tmp_path / "r.jsonl"
    path.write_bytes(encoder.start() + b"".join(encoder.tick(tick) for tick in TICKS[:130]))
    entries: list[Any] = list(read(path))
    assert all(isinstance(entry, Entry) for entry in entries)
    assert [entry.kind for entry in entries[:4]] == ["start", "group", "state", "tick"]
    start = entries[0].body
    assert (start["format"], start["epoch"], start["continues"]) == (1, 7, False)
    assert len(start["law"]) == 12
    states = [entry.body["at"] for entry in entries if entry.kind == "state"]
    assert [round(later - states[0]) for later in states] == [0, 60, 120]
