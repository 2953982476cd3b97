"""Replay: the same bits, the first difference by name, and what another profile would have done."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate.profile import DeviceProfile, load_profile
from coldplate_governor.explain import lines
from coldplate_governor.explain.encoder import TickEncoder
from coldplate_governor.explain.recording import read
from coldplate_governor.explain.replay import Replay, ReplayReport
from coldplate_governor.explain.replay_command import main
from coldplate_governor.explain.tick import Tick
from coldplate_governor.law import Decision, Inputs, LawState, decide
from governor.law_run import law_run
from governor.test_explain_codec import values

PROFILE = load_profile("310p-duo")


def recorded(path: Path, ticks: list[Tick]) -> Path:
    encoder = TickEncoder(epoch=1)
    path.write_bytes(encoder.start() + b"".join(encoder.tick(tick) for tick in ticks))
    return path


def rewritten(path: Path, number: int, change: Any) -> None:
    """Change what line ``number`` says, with a checksum that fits."""
    whole = path.read_bytes().splitlines()
    body = lines.unseal(whole[number])
    change(body)
    whole[number] = lines.seal(body).rstrip(b"\n")
    path.write_bytes(b"\n".join(whole) + b"\n")


def run(path: Path, *flags: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(path), *flags])
    return int(ended.value.code or 0)


def report_of(path: Path, **options: Any) -> ReplayReport:
    replay = Replay(**options)
    for _ in replay.run(read(path)):
        pass
    return replay.report


@settings(max_examples=40, deadline=None)
@given(rounds=st.lists(st.tuples(values(Inputs), values(Inputs), st.floats(-1e6, 1e6)), min_size=1, max_size=6))
def test_any_inputs_replay(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[Inputs, Inputs, float]]
) -> None:
    state, ticks, now_s = LawState(), [], 0.0
    for first, second, step in rounds:
        now_s += step
        inputs = {"npu:0": first, "npu:1": second}
        after, decisions = decide(PROFILE, state, inputs, now_s)
        ticks.append(Tick("card", PROFILE, now_s, state, inputs, after, decisions))
        state = after
    report = report_of(recorded(tmp_path_factory.mktemp("any") / "r", ticks))
    assert (report.identical, report.difference, report.damage) == (len(rounds), None, [])


def test_replay_says_that_all_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "r.jsonl", list(law_run(300)))
    assert run(path) == 0
    text = capsys.readouterr().out
    assert "r.jsonl: 300 ticks over 5 min" in text
    assert text.endswith("every decision comes out the same, bit for bit\n")


def test_replay_as_json_and_with_every_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "r.jsonl", list(law_run(300)))
    assert run(path, "--json", "--changes") == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["identical"], body["ticks"], body["identical_ticks"]) == (True, 300, 300)
    assert body["changes"] == body["complete_changes"] == len(body["changed"]) > 20
    assert body["changed"][0]["missing"] == []
    assert run(path, "--changes") == 0
    assert "THROTTLED" in capsys.readouterr().out


def test_a_law_that_decides_otherwise_is_found_out_at_its_first_tick(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl", list(law_run(300)))

    def other(
        profile: DeviceProfile, state: LawState, inputs: Mapping[str, Inputs], now_s: float
    ) -> tuple[LawState, dict[str, Decision]]:
        after, decisions = decide(profile, state, inputs, now_s)
        if now_s > 5100:
            decisions["npu:1"] = replace(decisions["npu:1"], duty=0.123)
        return after, decisions

    report = report_of(path, law=other)
    assert report.identical == 100
    assert report.difference is not None
    assert report.difference.at_s == pytest.approx(5100.13)
    assert report.difference.group == "npu:0+npu:1"


def test_the_first_difference_is_named_by_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "r.jsonl", list(law_run(200)))
    whole = [lines.unseal(line) for line in path.read_bytes().splitlines()]
    at = next(n for n, body in enumerate(whole) if n > 60 and "duty" in str(body.get("changed", {}).get("npu:0")))

    def change(body: dict[str, Any]) -> None:
        body["changed"]["npu:0"]["duty"] = 0.5
        body["out"] = "0" * 16

    rewritten(path, at, change)
    assert run(path) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert f"r.jsonl line {at + 1}" in said
    assert "npu:0.duty: recorded 0.5, replayed " in said


def test_an_input_that_was_changed_by_one_bit_shows(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl", list(law_run(100)))

    def change(body: dict[str, Any]) -> None:
        body["in"]["npu:0"]["temperature_celsius"] += 1e-9

    rewritten(path, 50, change)
    report = report_of(path)
    assert report.difference is not None
    assert report.identical == 47  # the first three lines are no ticks


def test_a_state_that_does_not_follow_is_a_difference(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl", list(law_run(100)))
    whole = [lines.unseal(line) for line in path.read_bytes().splitlines()]
    at = [number for number, body in enumerate(whole) if body["kind"] == "state"][1]
    rewritten(path, at, lambda body: body["state"].update(integral=0.25))
    report = report_of(path)
    assert report.difference is not None
    assert (report.difference.what, report.difference.recorded) == ("state.integral", 0.25)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"law": "123456789abc"}, "ANOTHER LAW: recorded by law 123456789abc of version"),
        ({"format": 9}, "ANOTHER LAW: recorded by format 9 of version"),
    ],
)
def test_another_law_or_version_is_told_and_not_called_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    path = recorded(tmp_path / "r.jsonl", list(law_run(100)))
    rewritten(path, 0, lambda body: body.update(change))
    assert run(path) == 2
    text = capsys.readouterr().out
    assert said in text
    assert "100 ticks were left out" in text
    assert text.endswith("nothing could be replayed\n")


def test_the_part_of_this_law_is_replayed_after_an_upgrade(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "r.jsonl.1", list(law_run(100)))
    rewritten(path, 0, lambda body: body.update(law="123456789abc"))
    recorded(tmp_path / "r.jsonl", list(law_run(50)))
    assert run(tmp_path / "r.jsonl") == 0
    assert "ANOTHER LAW" in capsys.readouterr().out


def test_damage_is_told_and_the_rest_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "r.jsonl", list(law_run(200)))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert run(path) == 2
    text = capsys.readouterr().out
    assert "DAMAGED: r.jsonl line" in text
    assert "does not fit its checksum" in text
    assert "that can be read come out the same, bit for bit" in text


def test_a_profile_that_is_loaded_anew_belongs_to_the_record(tmp_path: Path) -> None:
    ticks = list(law_run(100))
    cooler = replace(PROFILE, temperature=replace(PROFILE.temperature, target_celsius=80.0))
    state = ticks[-1].after
    for tick in law_run(100):
        now_s = tick.now_s + 200
        after, decisions = decide(cooler, state, tick.inputs, now_s)
        ticks.append(Tick(tick.group, cooler, now_s, state, tick.inputs, after, decisions))
        state = after
    report = report_of(recorded(tmp_path / "r.jsonl", ticks))
    assert (report.identical, report.difference) == (200, None)


@pytest.mark.parametrize(("since", "least", "most"), [("5220", 80, 140), ("-80", 80, 140), ("-10000", 300, 300)])
def test_a_replay_may_begin_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], since: str, least: int, most: int
) -> None:
    path = recorded(tmp_path / "r.jsonl", list(law_run(300)))
    assert run(path, f"--from={since}", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert least <= body["identical_ticks"] <= most
    assert body["skipped_ticks"] == 0


def test_another_profile_shows_what_would_have_been(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "r.jsonl", list(law_run(600)))
    text = (Path(__file__).parents[2] / "proto/coldplate/profiles/310p-duo.toml").read_text()
    cooler = text.replace("target_celsius = { value = 85.0", "target_celsius = { value = 75.0")
    (tmp_path / "cool.toml").write_text(cooler)
    assert run(path, f"--profile={tmp_path / 'cool.toml'}", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    device = body["devices"]["npu:0"]
    assert (device["then"]["profile"], device["now"]["profile"]) == ("310p-duo", "cool")
    assert device["now"]["mean_duty"] < device["then"]["mean_duty"]
    assert device["then"]["ticks"] == device["now"]["ticks"] == 600
    assert device["parts_at_s"] is not None
    assert body["problems"] == []
    assert run(path, f"--profile=npu:1={tmp_path / 'cool.toml'}") == 0
    said = capsys.readouterr().out
    assert "what if (cool)" in said
    assert said.endswith("other decisions would have changed them.\n")


def test_the_same_profile_never_parts_from_what_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "r.jsonl", list(law_run(200)))
    rewritten(path, 0, lambda body: body.update(law="123456789abc"))
    assert run(path, "--what-if") == 0
    assert capsys.readouterr().out.count("the two never part") == 2


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["/no/such.jsonl"], "/no/such.jsonl: there is no such file"),
        (["r", "--from=soon"], "invalid float value: 'soon'"),
        (["r", "--profile=310x"], "unknown profile '310x'"),
        (["r", "--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_unusable_arguments_end_it_with_code_2(
    capsys: pytest.CaptureFixture[str], flags: list[str], expected: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("coldplate-governor replay: ")
    assert expected in error
    assert error.count("\n") == 1
