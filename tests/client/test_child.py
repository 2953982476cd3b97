"""Supervision of single processes, with small programs of our own."""

import queue
import signal
import sys
from pathlib import Path

import psutil
import pytest

from coldplate_client.up.child import Child, describe_exit

End = tuple[int, bool]


def make(tmp_path: Path, program: str, *, restart: bool) -> tuple[Child, "queue.Queue[End]"]:
    ends: queue.Queue[End] = queue.Queue()
    child = Child(
        "part",
        [sys.executable, "-c", program],
        tmp_path / "part.log",
        {},
        restart=restart,
        on_end=lambda _, code, again: ends.put((code, again)),
    )
    return child, ends


def test_an_end_is_reported_with_the_last_lines_of_the_log(tmp_path: Path) -> None:
    child, ends = make(tmp_path, "for n in range(9): print('line', n)\nraise SystemExit(3)", restart=False)
    child.start()
    assert ends.get(timeout=10) == (3, False)
    assert child.last_lines() == [f"line {number}" for number in range(4, 9)]
    assert not child.alive
    child.stop(1)


def test_it_is_started_again_after_a_crash(tmp_path: Path) -> None:
    child, ends = make(tmp_path, "print('here'); raise SystemExit(1)", restart=True)
    child.start()
    try:
        assert [ends.get(timeout=10) for _ in range(2)] == [(1, True)] * 2
    finally:
        child.stop(1)
    assert child.log_path.read_text().count("here") >= 2


def test_unusable_settings_are_not_tried_again(tmp_path: Path) -> None:
    child, ends = make(tmp_path, "raise SystemExit(2)", restart=True)
    child.start()
    assert ends.get(timeout=10) == (2, False)
    child.stop(1)


@pytest.mark.parametrize("stubborn", [False, True])
def test_stopping_ends_it_and_what_it_started(tmp_path: Path, stubborn: bool) -> None:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if stubborn else ""
    program = (
        f"import signal, subprocess, sys; {ignore}\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(other.pid) + '.')\n"
        "signal.pause()"
    )
    child, ends = make(tmp_path, program, restart=True)
    child.start()
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("."):
        assert child.alive
    other = psutil.Process(int((tmp_path / "pid").read_text()[:-1]))
    child.stop(0.5)
    assert not child.alive
    assert ends.empty()
    psutil.wait_procs([other], timeout=5)
    assert not other.is_running() or other.status() == psutil.STATUS_ZOMBIE


def test_exits_are_told_in_words() -> None:
    assert describe_exit(-signal.SIGKILL) == "was ended by SIGKILL"
    assert describe_exit(2) == "ended with exit code 2"
