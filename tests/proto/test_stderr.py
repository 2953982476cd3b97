"""A log that nobody reads, or that has no room, stops nobody."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from coldplate.stderr import StderrWriter

LINE = b"x" * 99 + b"\n"


class Pipe:
    """Standard error as a pipe whose reader reads when told."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def fileno(self) -> int:
        return self.write_end

    def flush(self) -> None:
        pass

    def take(self) -> bytes:
        os.set_blocking(self.read_end, False)
        parts: list[bytes] = []
        while True:
            try:
                part = os.read(self.read_end, 1 << 20)
            except BlockingIOError:
                return b"".join(parts)
            parts.append(part)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    made = Pipe()
    monkeypatch.setattr("coldplate.stderr.sys", SimpleNamespace(stderr=made))
    yield made
    os.close(made.write_end)
    os.close(made.read_end)


def test_lines_come_out_as_they_are(pipe: Pipe) -> None:
    StderrWriter().write(LINE * 200)
    assert pipe.take() == LINE * 200


def test_a_pipe_that_nobody_reads_costs_one_short_wait_and_tells_what_was_dropped(pipe: Pipe) -> None:
    writer = StderrWriter()
    began = time.monotonic()
    for _ in range(5000):
        writer.write(LINE)
    assert time.monotonic() - began < 2
    before = pipe.take()
    assert before
    assert set(before.split(b"\n")[:-1]) == {LINE[:-1]}
    writer.write(b"after\n")
    told, after = pipe.take().splitlines()
    dropped = 5000 - len(before) // 100
    assert f"{dropped} messages were dropped" in told.decode()
    assert after == b"after"
    writer.write(b"again\n")
    assert pipe.take() == b"again\n"


def test_a_line_that_was_cut_does_not_run_into_the_next(pipe: Pipe) -> None:
    writer = StderrWriter()
    writer.write(b"y" * 1_000_000 + b"\n")
    pipe.take()
    writer.write(b"after\n")
    lines = pipe.take().splitlines()
    assert lines[0] == b""
    assert lines[-1] == b"after"


def test_a_reader_that_is_only_slow_misses_nothing(pipe: Pipe) -> None:
    parts: list[bytes] = []

    def read_slowly() -> None:
        while sum(map(len, parts)) < 400_000:
            parts.append(os.read(pipe.read_end, 20_000))

    reader = threading.Thread(target=read_slowly)
    reader.start()
    writer = StderrWriter()
    for _ in range(4000):
        writer.write(LINE)
    reader.join(10)
    assert b"".join(parts) == LINE * 4000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("code", ["w(b'a\\n')", "fail('p', 'what is wrong')"])
def test_no_room_is_no_error(code: str) -> None:
    script = f"from coldplate.stderr import write_stderr as w\nfrom coldplate.settings import fail\n{code}"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", script], stderr=full, timeout=30, check=False)
    assert done.returncode == (2 if "fail" in code else 0)


def test_a_reader_that_has_gone_is_no_error(pipe: Pipe) -> None:
    os.close(pipe.read_end)
    StderrWriter().write(LINE)
    pipe.read_end = os.open(os.devnull, os.O_RDONLY)
