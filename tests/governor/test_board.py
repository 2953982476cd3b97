"""The simulated board: as an object, and as a process on its socket."""

import json
import os
import socket
from pathlib import Path
from unittest.mock import ANY

import pytest

from coldplate_governor.board.board import Board, ChipLostError
from coldplate_governor.board.chip import Holding
from coldplate_governor.board.client import BoardChipLost, BoardClient, BoardRefused, BoardUnreachable, unix_path
from coldplate_governor.board.kinds import KINDS, profiles_of
from coldplate_governor.board.pokes import POKES, BoardError
from support import processes

MEMORY_TOTAL_BYTES = KINDS["310p"].memory_bytes


def after(board: Board, seconds: float, start: float = 0.0) -> Board:
    board.advance(start)
    board.advance(start + seconds)
    return board


def test_pairs_of_chips_share_a_card() -> None:
    board = Board(3)
    facts = board.describe()
    assert facts["cards"] == ["300I Duo", "300I Pro"]
    assert facts["heatsinks"] == [[0, 1], [2]]
    assert facts["profiles"] == profiles_of("310p", 3) == ["310p-duo", "310p-duo", "310p-pro"]
    assert facts["npu_ids"] == [[2, 0], [2, 1], [4, 0]], "ids are those of cards, and not contiguous"
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
    assert busy["card_power_watts"] > 60
    assert "power_watts" not in busy, "a 310P has no power sensor of its own"
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


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_halves_its_clock_at_its_own_cliff(kind: str) -> None:
    cliff = KINDS[kind].cliff.steps[0][0]
    below, above = (after(Board(1, start_celsius=cliff + d, chip=kind), 0.2) for d in (-1.5, 1.5))
    assert below.post_step(0, 0.1, 1)["slowdown"] == 1.0
    assert above.post_step(0, 0.1, 1)["slowdown"] == 2.0
    hot = above.read(0)
    assert (hot["throttle_cause"], below.read(0)["throttle_cause"]) == ("thermal", "none")
    assert "80E20207" in hot["error_codes"]
    assert hot["firmware_throttle_events"] == 1


def test_a_310b_halves_its_clock_at_86_degrees_and_does_not_show_it() -> None:
    said = after(Board(1, start_celsius=86.5, chip="310b"), 0.1).read(0)
    assert (said["firmware_limit_celsius"], said["throttle_cause"]) == (86.0, "thermal")
    assert not {"frequency_mhz", "power_watts", "card_power_watts"} & set(said)
    assert said["health"] == "Alarm", "as in good health"


def test_a_910b_tells_power_and_memory_temperature_of_each_chip() -> None:
    said = Board(2, chip="910b").read(1)
    assert (said["health"], said["power_watts"], said["memory_temperature_celsius"]) == ("OK", 0.0, 35.0)
    assert said["bfloat16"] is True


def test_work_levels_set_the_clock_and_the_firmware_only_tightens_it() -> None:
    board = after(Board(1, start_celsius=60.0, chip="310b1"), 0.1)
    board.set_level(0, 2)
    assert board.read(0)["work_level"] == "16T_1.6GHz"
    assert board.post_step(0, 0.0, 1)["slowdown"] == pytest.approx(1.224)
    board.poke("heat", 0, {"celsius": 90})
    board.advance(0.3)
    assert board.post_step(0, 0.0, 1)["slowdown"] == 2.0
    board.set_level(0, 1)
    assert board.post_step(0, 0.0, 1)["slowdown"] == pytest.approx(1224 / 500)
    with pytest.raises(BoardError, match="no work level 4: expected 0 to 3"):
        board.set_level(0, 4)
    board.poke("ignore", 0, {})
    board.set_level(0, 0)
    assert board.read(0)["work_level"] == "8T_1.0GHz", "it said yes and did nothing"
    board.poke("refuse", 0, {})
    with pytest.raises(BoardError, match="does not take a work level"):
        board.set_level(0, 0)
    with pytest.raises(BoardError, match="does not take a work level"):
        Board(1).set_level(0, 0)


def test_a_lower_level_draws_less() -> None:
    watts = []
    for level in (0, 1):
        board = Board(1, start_celsius=50.0, chip="310b1")
        board.set_level(0, level)
        board.advance(0.0)
        for tenth in range(1, 61):
            board.post_step(0, 0.1, 8)
            board.advance(tenth / 10)
        watts.append(board.read(0)["power_watts"])
    assert watts[1] < watts[0] - 3


def test_lost_contact_heats_the_junction_at_once_and_a_dead_fan_slowly() -> None:
    def heat_after_20_s(poke: str, value: dict[str, float]) -> float:
        board = Board(1, start_celsius=70.0)
        board.advance(0.0)
        board.poke(poke, 0, value)
        for second in range(1, 21):
            board.post_step(0, 1.0, 16)
            board.advance(float(second))
        return float(board.read(0)["temperature_celsius"])

    sound = heat_after_20_s("contact", {"factor": 1})
    assert heat_after_20_s("contact", {"factor": 20}) > sound + 10
    assert sound <= heat_after_20_s("fan", {"share": 0.2}) < sound + 5


def test_caps_alarms_and_frozen_sensors() -> None:
    board = after(Board(2, start_celsius=60.0), 0.1)
    board.poke("cap", 0, {"share": 0.5})
    assert board.post_step(0, 0.1, 1)["slowdown"] == 2.0
    assert board.read(0)["throttle_cause"] == "power-cap"
    board.poke("alarm", 0, {"code": 0x80E01801})
    said = board.read(0)
    assert (said["health"], said["error_codes"]) == ("Alarm", ["80E01801"])
    assert said["error_texts"] == ["HBM multi-bit ECC error"]
    board.poke("freeze", 1, {"seconds": 10})
    board.poke("heat", None, {"celsius": 80})
    assert (board.read(0)["temperature_celsius"], board.read(1)["temperature_celsius"]) == (80.0, 60.0)
    board.advance(11.0)
    assert board.read(1)["temperature_celsius"] != 60.0
    board.poke("restore", None, {})
    assert board.read(0)["throttle_cause"] == "none"
    assert board.read(0)["health"] == "OK"


def test_memory_is_what_workers_hold_and_goes_with_them() -> None:
    board = Board(1)
    board.post_step(0, 0.0, 0, holder=7, holding=Holding(123, "python", 10 * 2**30))
    held = board.read(0)
    assert held["memory_used_bytes"] == held["memory_idle_bytes"] + 10 * 2**30
    assert held["processes"] == [[123, "python", 10 * 2**30]]
    board.forget(7)
    assert board.read(0)["memory_used_bytes"] == held["memory_idle_bytes"]
    assert board.read(0)["processes"] == []


def test_every_poke_is_undone_by_restore() -> None:
    values = {"celsius": 50, "share": 0.5, "factor": 3, "bytes": 10**9, "seconds": 5, "code": -8005, "steps": 2}
    for name, poke in POKES.items():
        if name in {"heat", "ambient"}:
            continue
        board, untouched = (after(Board(1, start_celsius=60.0), 0.1) for _ in range(2))
        given = {key: 0x80E01801 if name == "alarm" else values[key] for key in poke.required or poke.values}
        board.poke(name, 0, given)
        board.poke("restore", 0, {})
        assert board.read(0) == untouched.read(0), name
        assert board.describe() == untouched.describe(), name
        assert board.hangs_for_s(0) == 0, name


@pytest.mark.parametrize(
    ("what", "chip", "values", "expected"),
    [
        ("explode", 0, {}, "unknown poke 'explode'"),
        ("heat", 0, {}, "needs celsius"),
        ("heat", 0, {"celsius": float("nan")}, "celsius is nan"),
        ("heat", 0, {"celsius": "hot"}, "celsius is 'hot'"),
        ("heat", 0, {"kelvin": 300}, "does not take 'kelvin'"),
        ("heat", 7, {"celsius": 50}, "no chip 7"),
        ("contact", 0, {"factor": 0.5}, "factor is 0.5: expected a number from 1 to 1000"),
        ("memory", 0, {"bytes": 2**45}, "the chip has"),
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
            assert one.post_step(0, 0.01, 4, held_bytes=2**30).slowdown == 1.0
            assert two.read(0)["processes"] == [[os.getpid(), ANY, 2**30]]
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
