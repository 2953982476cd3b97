"""Settings: flags over environment over file, and unusable ones end the process with 2 and one line."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, field_validator

from coldplate.settings import ProcessSettings, load_settings


class Example(ProcessSettings):
    """Settings of an example."""

    max_num_seqs: int = Field(32, ge=1, description="Streams at once.")
    worker: list[str] = Field(default_factory=list, description="Workers.")
    test_faults: bool = Field(False, description="A switch.")
    threads: int | None = Field(None, ge=1, description="Threads.")
    listen: str = Field("127.0.0.1:1", description="Address.")

    @field_validator("listen")
    @classmethod
    def _has_port(cls, listen: str) -> str:
        if ":" not in listen:
            raise ValueError("expected HOST:PORT")
        return listen


def load(*argv: str) -> Example:
    return load_settings(Example, "example", list(argv))


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line said while ending with 2."""
    with pytest.raises(SystemExit) as ended:
        load(*argv)
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("example: ")
    return lines[0]


def test_defaults() -> None:
    settings = load()
    assert (settings.max_num_seqs, settings.worker, settings.test_faults, settings.threads) == (32, [], False, None)


def test_flags_beat_the_environment_and_that_beats_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('max_num_seqs = 1\nthreads = 1\nlog_level = "warning"\n')
    monkeypatch.setenv("COLDPLATE_MAX_NUM_SEQS", "2")
    monkeypatch.setenv("COLDPLATE_THREADS", "2")
    settings = load("--config", str(file), "--max-num-seqs=3")
    assert (settings.max_num_seqs, settings.threads, settings.log_level) == (3, 2, "warning")
    assert load(f"--config={file}").max_num_seqs == 2


def test_a_repeated_flag_and_a_switch() -> None:
    settings = load("--worker=cpu", "--worker", "npu:0", "--test-faults")
    assert settings.worker == ["cpu", "npu:0"]
    assert settings.test_faults


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), max_size=3))
@example(["fault:delay=20ms@1-,cpu", '["quoted", \\', "true", "12", "a=b", " "])
def test_a_repeated_flag_keeps_every_value_whole(values: list[str]) -> None:
    assert load(*(f"--worker={value}" for value in values)).worker == values


def test_a_value_behind_its_flag_is_kept_whole() -> None:
    assert load("--worker", "a,b", "--threads", "2", "--worker", "c").worker == ["a,b", "c"]


def test_a_repeated_flag_without_a_value_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--worker" in refused(capsys, "--worker")


def test_a_repeated_flag_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDPLATE_WORKER", '["a", "b"]')
    assert load().worker == ["a", "b"]
    assert load("--worker=c").worker == ["c"]


def test_a_refusal_of_our_own_is_in_our_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "--listen=here") == "example: listen: expected HOST:PORT (got 'here')"


def test_a_value_out_of_range_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "--max-num-seqs=0")
    assert "max-num-seqs" in line
    assert "'0'" in line
    assert "greater than or equal to 1" in line


def test_a_value_of_the_wrong_kind_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "--threads=many")
    assert "threads" in line
    assert "'many'" in line


def test_an_unknown_setting_in_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max_num_seqz = 9\n")
    assert "max-num-seqz" in refused(capsys, "--config", str(file))


def test_a_file_that_is_no_toml_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max_num_seqs = = 9\n")
    assert str(file) in refused(capsys, "--config", str(file))


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'nowhere.toml'" in refused(capsys, "--config=nowhere.toml")


def test_an_unusable_variable_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDPLATE_LOG_LEVEL", "loud")
    assert "log-level" in refused(capsys)


def test_an_unknown_flag_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load("--no-such-flag=1")
    assert ended.value.code == 2
    assert "no-such-flag" in capsys.readouterr().err


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load("--help")
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert all(flag in out for flag in ("--max-num-seqs", "--worker", "--test-faults", "--threads", "--log-format"))
