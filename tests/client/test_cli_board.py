"""``coldplate board``: what it does arrives at the board."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from coldplate_governor.board.client import BoardClient, BoardRefused
from support import processes

_COLDPLATE = [sys.executable, "-c", "from coldplate_client.cli import main; main()"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with processes.board("--chip=310b1", "--start-temperature-celsius=60") as (_, found):
        yield found


@pytest.fixture
def board(address: str) -> Iterator[BoardClient]:
    with BoardClient(address) as client:
        yield client
        client.poke("restore")


def run(command: str, address: str) -> tuple[int, str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLDPLATE_")}
    done = subprocess.run(
        [*_COLDPLATE, "board", *shlex.split(command)],
        capture_output=True,
        text=True,
        env={**kept, "COLUMNS": "200", "COLDPLATE_BOARD": address},
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        ("lie 20 --seconds 60", "temperature_celsius", 20),
        ("alarm 0x80E01801", "error_codes", ["80E01801"]),
        ("poke alarm code=0x80E01801", "error_codes", ["80E01801"]),
        ("level 1", "work_level", "8T_1.0GHz"),
        ("cap 0.5 --chip 0", "throttle_cause", "power-cap"),
        ("memory 1000", "memory_used_bytes", (10810 - 1000) << 20),
    ],
)
def test_a_command_acts_on_the_board(board: BoardClient, address: str, command: str, name: str, value: object) -> None:
    assert run(command, address) == (0, "", "")
    assert board.read(0)[name] == value


@pytest.mark.parametrize(
    "command", ["heat 70", "ambient 30", "fan 0.5", "contact 3", "oom", "oom 2", "freeze", "hang 0"]
)
def test_a_command_is_taken(board: BoardClient, address: str, command: str) -> None:
    assert run(command, address) == (0, "", "")
    assert board.read(0)["simulated"] is True


def test_a_chip_is_lost_and_restored(board: BoardClient, address: str) -> None:
    assert run("lose", address)[0] == 0
    with pytest.raises(BoardRefused, match="lost"):
        board.read(0)
    assert run("read", address) == (1, "", "coldplate: chip 0 does not answer: lost\n")
    assert run("restore", address) == (0, "", "")
    code, text, _ = run("read", address)
    assert code == 0
    assert "chip: 310B1 (simulated)" in text


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("alarm hot", 2, "'code=hot': expected NAME=NUMBER"),
        ("cap 7", 1, "share is 7.0: expected a number from 0.05 to 1"),
        ("level 9", 1, "no work level 9"),
        ("heat 50 --chip 3", 1, "no chip 3"),
    ],
)
def test_what_makes_no_sense_is_one_line(address: str, command: str, code: int, words: str) -> None:
    ended, _, error = run(command, address)
    assert ended == code
    assert words in error
    assert error.count("\n") == 1
