"""Log lines: bound context on each, and tracebacks without what the variables held."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from coldplate.logs import LogFormat, configure_logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()


def fail_holding(prompt: str) -> None:
    try:
        raise RuntimeError("the device failed")
    except RuntimeError:
        structlog.get_logger().exception("step failed", prompt_length=len(prompt))


@pytest.mark.parametrize("fmt", ["console", "json"])
def test_a_traceback_does_not_show_local_variables(fmt: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("server", fmt=fmt)
    fail_holding("a private prompt")
    logged = capsys.readouterr().err
    assert "the device failed" in logged
    assert "fail_holding" in logged
    assert "a private prompt" not in logged


def test_each_line_names_the_process_and_what_is_bound(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("server", fmt="json")
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        structlog.get_logger().info("from structlog")
        logging.getLogger("library").warning("from the standard library")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert first["request_id"] == second["request_id"] == "r1"
    assert first["process"] == second["process"] == "server"
    assert (first["event"], first["level"]) == ("from structlog", "info")
    assert (second["event"], second["level"]) == ("from the standard library", "warning")


def test_lines_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("server", level="warning")
    structlog.get_logger().info("too quiet")
    structlog.get_logger().warning("loud enough")
    logged = capsys.readouterr().err
    assert "too quiet" not in logged
    assert "loud enough" in logged
