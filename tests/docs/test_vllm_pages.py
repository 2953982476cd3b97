"""The migration table and the worker profiles: a flag they name exists where they say, an invented one nowhere."""

import json
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

from coldplate_engine.main import load
from coldplate_engine.settings import EngineSettings
from coldplate_engine.vllm_worker.arguments import vllm_flags
from coldplate_server.settings import ServerSettings
from docs.fences import ROOT
from support.vllm import vllm_python

PROFILES = sorted((ROOT / "deploy/workers").glob("*.toml"))
TABLE = (ROOT / "docs/from-vllm.md").read_text()
ROWS = [
    (re.findall(r"`(--[a-z-]+)", cells[0]), cells[1:])
    for line in TABLE.splitlines()
    if line.startswith("| `--") and (cells := line.strip("| ").split(" | "))
]
OURS = {
    f"--{name.replace('_', '-')}" for settings in (EngineSettings, ServerSettings) for name in settings.model_fields
}
_LIST_FLAGS = """
import json
from vllm import AsyncEngineArgs
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
engine = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
serve = make_arg_parser(FlexibleArgumentParser())
print(json.dumps([[o for action in parser._actions for o in action.option_strings] for parser in (engine, serve)]))
"""


@cache
def vllms_flags() -> tuple[frozenset[str], frozenset[str]]:
    """Of its engine, and of ``vllm serve``."""
    done = subprocess.run(
        [str(vllm_python()), "-c", _LIST_FLAGS], capture_output=True, text=True, timeout=600, check=True
    )
    engine, serve = json.loads(done.stdout.splitlines()[-1])
    return frozenset(engine), frozenset(serve)


def test_the_table_has_the_flags_of_the_reports_and_marks_the_invented_ones() -> None:
    named = {flag for flags, _ in ROWS for flag in flags}
    assert {"--tensor-parallel-size", "--dtype", "--enforce-eager", "--swap-space", "--trust-remote-code"} <= named
    invented = {flag for flags, cells in ROWS for flag in flags if "invented" in " ".join([*cells, *flags])}
    invented |= {"--enable-prometheus", "--save-logs"} & named
    assert len(invented) == 10
    for route in ("/generate", "/v1/completions", "/v1/chat/completions", "image_url", "/health"):
        assert route in TABLE


@pytest.mark.parametrize(("flags", "cells"), ROWS, ids=lambda value: value[0] if value and "--" in value[0] else "")
def test_what_stands_for_a_flag_here_exists(flags: list[str], cells: list[str]) -> None:
    ours = set(re.findall(r"`(--[a-z-]+)", cells[0]))
    assert ours <= OURS


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_a_profile_is_read_and_says_where_its_numbers_come_from(profile: Path) -> None:
    settings = load([f"--config={profile}", "--model=m", "--listen=unix:s"])
    assert settings.engine == "vllm"
    assert vllm_flags(settings, "npu")[-1] == settings.vllm_args[-1]
    for number, line in enumerate(profile.read_text().splitlines()):
        if re.match(r"^(max_|  ['\"]--)", line):
            before = profile.read_text().splitlines()[number - 1]
            assert "#" in line or before.lstrip().startswith("#"), f"no source: {line}"
    for argument in settings.vllm_args:
        _, _, value = argument.partition("=")
        if value.startswith("{"):
            json.loads(value)


def test_profiles_for_310p_have_what_the_chip_demands() -> None:
    for profile in PROFILES:
        if profile.stem.startswith("310p"):
            data = tomllib.loads(profile.read_text())
            assert data["dtype"] == "float16"
            assert data["max_model_len"] <= 20480
            assert any("FULL_DECODE_ONLY" in argument for argument in data["vllm_args"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_vllm_has_every_flag_that_the_profiles_and_the_table_name() -> None:
    engine, serve = vllms_flags()
    for profile in PROFILES:
        for argument in tomllib.loads(profile.read_text())["vllm_args"]:
            assert argument.partition("=")[0] in engine, f"{profile.name}: {argument}"
    for flags, cells in ROWS:
        if len(cells) < 2:
            continue  # of the server
        refused = "refused" in cells[1] or "refuses" in cells[1]
        for flag in flags:
            if "invented" in cells[0]:
                assert flag not in engine | serve, flag
            elif refused:
                assert flag not in engine, flag
            else:
                assert flag in (engine if "passed on" in cells[1] else engine | serve), flag
