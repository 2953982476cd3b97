"""The simulated board: as an object, and as a process on its socket."""

import json
import socket
from pathlib import Path

import pytest

from coldplate_governor.board.board import MEMORY_TOTAL_BYTES, Board, BoardError, ChipLostError
from coldplate_governor.board.client import BoardChipLost, BoardClient, BoardRefused, BoardUnreachable, unix_path
from support import processes


def test_pairs_of_chips_share_a_card() -> None:
    board = Board(3)
    assert board.describe()["cards"] == ["300I Duo", "300I Pro"]
    board.poke("heat", 0, {"celsius": 70})
    assert [board.read(chip)["temperature_celsius"] for chip in range(3)] == [70.0, 70.0, 35.0]


def test_busy_time_heats_and_idleness_cools() -> None:
    board = Board(1, start_celsius=60.0)
    board.advance(0.0)
    for second in range(1, 31):
        board.post_step(0, 1.0, 300)
        board.advance(float(second))
    busy = board.read(0)
    assert busy["temperature_celsius"] > 65
    assert busy["utilization_percent"] > 90
    assert busy["power_watts"] > 60
    board.advance(90.0)
    idle = board.read(0)
    assert idle["temperature_celsius"] < busy["temperature_celsius"]
    assert idle["utilization_percent"] < 1


def test_a_hot_chip_is_slow_and_says_so() -> None:
    board = Board(1, start_celsius=91.0)
    board.advance(0.0)
    board.advance(0.2)
    assert board.post_step(0, 0.1, 1)["slowdown"] == 2.0
    assert board.read(0)["frequency_mhz"] == board.read(0)["rated_frequency_mhz"] / 2


def test_pokes_act_and_are_undone() -> None:
    board = Board(2)
    board.advance(0.0)
    board.poke("oom", 0, {"steps": 2})
    assert [board.post_step(0, 0.0, 1)["fault"] for _ in range(3)] == ["oom", "oom", None]
    board.poke("memory", 0, {"bytes": 10**9})
    assert board.post_step(0, 0.0, 1)["memory_limit_bytes"] == 10**9
    assert board.read(0)["memory_used_bytes"] == MEMORY_TOTAL_BYTES - 10**9
    board.poke("lie", 0, {"celsius": -1, "seconds": 5})
    assert board.read(0)["temperature_celsius"] == -1
    board.poke("ambient", None, {"celsius": 20})
    assert board.describe()["ambient_celsius"] == 20
    board.poke("hang", 1, {"seconds": 30})
    assert board.hangs_for_s(1) == 30
    board.poke("lose", 1, {})
    assert board.post_step(1, 0.1, 1)["fault"] == "lost"
    with pytest.raises(ChipLostError):
        board.read(1)
    board.poke("restore", None, {})
    assert board.post_step(0, 0.0, 1) == {"slowdown": 1.0, "memory_limit_bytes": None, "fault": None}
    assert board.read(0)["temperature_celsius"] == 35.0
    assert board.hangs_for_s(1) == 0
    assert board.read(1)["simulated"] is True


@pytest.mark.parametrize(
    ("what", "chip", "values", "expected"),
    [
        ("explode", 0, {}, "unknown poke 'explode'"),
        ("heat", 0, {}, "needs celsius"),
        ("heat", 0, {"celsius": float("nan")}, "celsius is nan"),
        ("heat", 0, {"celsius": "hot"}, "celsius is 'hot'"),
        ("heat", 0, {"kelvin": 300}, "does not take 'kelvin'"),
        ("heat", 7, {"celsius": 50}, "no chip 7"),
    ],
)
def test_a_poke_that_makes_no_sense_is_refused(what: str, chip: int, values: dict[str, float], expected: str) -> None:
    with pytest.raises(BoardError, match=expected):
        Board(1).poke(what, chip, values)


def test_the_process_serves_several_clients_and_survives_bad_ones() -> None:
    with processes.board("--count=2", "--start-temperature-celsius=70") as (process, address):
        path = unix_path(address)
        silent = socket.socket(socket.AF_UNIX)
        silent.connect(path)
        rude = socket.socket(socket.AF_UNIX)
        rude.connect(path)
        rude.sendall(b'\xff\xfe\n[1]\n{"op": "read"}\n{"op": "read", "chip": 1e99}\n')
        answers = [json.loads(line) for line in _lines(rude, 4)]
        assert all("error" in answer for answer in answers)
        endless = socket.socket(socket.AF_UNIX)
        endless.connect(path)
        endless.sendall(b"x" * 100_000)
        half = socket.socket(socket.AF_UNIX)
        half.connect(path)
        half.sendall(b'{"op": ')
        half.close()
        with BoardClient(address) as one, BoardClient(address, timeout_s=0.3) as two:
            one.poke("hang", 1, seconds=60)
            with pytest.raises(BoardUnreachable, match=r"no answer in 0.3 s"):
                two.read(1)
            assert two.read(0)["temperature_celsius"] >= 60
            assert one.post_step(0, 0.01, 4).slowdown == 1.0
            with pytest.raises(BoardRefused, match="no chip 5"):
                one.read(5)
            one.poke("lose", 0)
            with pytest.raises(BoardChipLost):
                one.read(0)
        for client in (silent, rude, endless):
            client.close()
        refused = processes.run("coldplate-board", f"--listen={address}")
        assert refused.returncode == 2
        assert f"unix:{path} is taken" in refused.stderr
        assert process.stop() == 0
        assert not Path(path).exists(), "it takes its socket away"


def test_a_client_finds_a_restarted_board_and_a_stale_socket_is_taken_over() -> None:
    with processes.board() as (first, address), BoardClient(address) as client:
        client.read(0)
        first.kill()
        with pytest.raises(BoardUnreachable, match=r"no board at unix:[^ ]+: Connection refused$"):
            client.read(0)
        again = processes.Process("coldplate-board", [f"--listen={address}"], Path(unix_path(address)).parent)
        with again:
            processes.until("the board is back", lambda: _reads(client), 20)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--listen=/no/scheme", "expected unix:/path"),
        ("--listen=unix:/no/such/folder/b.sock", "No such file"),
        ("--count=0", "count"),
        ("--start-temperature-celsius=900", "start-temperature-celsius"),
    ],
)
def test_unusable_flags_end_it_with_code_2(flag: str, expected: str, tmp_path: Path) -> None:
    listen = [] if flag.startswith("--listen") else [f"--listen=unix:{tmp_path}/b.sock"]
    done = processes.run("coldplate-board", *listen, flag)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def _lines(client: socket.socket, count: int) -> list[bytes]:
    client.settimeout(5)
    data = b""
    while data.count(b"\n") < count:
        data += client.recv(4096)
    return data.splitlines()


def _reads(client: BoardClient) -> bool:
    try:
        return bool(client.read(0))
    except BoardUnreachable:
        return False
