"""Time that only goes forward, and where the parts meet."""

from pathlib import Path

import pytest

from coldplate import paths
from coldplate.clock import ManualClock, MonotonicClock


def test_the_machine_clock_never_goes_back() -> None:
    clock = MonotonicClock()
    readings = [clock.now() for _ in range(100)]
    assert readings == sorted(readings)


def test_the_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(10)
    clock.advance(2.5)
    assert clock.now() == 12.5
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)


def test_the_control_socket_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLDPLATE_CONTROL_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert paths.control_socket() == Path("/run/user/7/coldplate/control.sock")
    monkeypatch.setenv("COLDPLATE_CONTROL_SOCKET", "/elsewhere/c.sock")
    assert paths.control_socket() == Path("/elsewhere/c.sock")


def test_without_a_runtime_folder_each_user_has_one_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert paths.runtime_dir().name.startswith("coldplate-")


def test_the_model_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLDPLATE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert paths.model_cache() == Path("/cache/coldplate/models")
    monkeypatch.setenv("COLDPLATE_CACHE", "/models")
    assert paths.model_cache() == Path("/models")


def test_records_are_kept_in_the_users_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLDPLATE_STATE", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert paths.state_dir() == Path("/home/someone/.local/state/coldplate")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert paths.state_dir() == Path("/state/coldplate")
    monkeypatch.setenv("COLDPLATE_STATE", "/var/lib/coldplate")
    assert paths.state_dir() == Path("/var/lib/coldplate")


def test_a_private_folder_is_the_owners_only(tmp_path: Path) -> None:
    made = paths.ensure_private_dir(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700
