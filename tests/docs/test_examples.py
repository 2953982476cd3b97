"""Every example of README and docs does what it says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from docs.fences import PAGES, ROOT, Block, blocks, commands
from docs.grpcurl import grpcurl
from support.processes import BIN, Stack, clean_environment

_SHELL = commands("sh")
_GRPCURL = [command for _, command in _SHELL if command.startswith("grpcurl ")]
_OTHERS = [(page, command) for page, command in _SHELL if not command.startswith("grpcurl ")]


def environment(stack: Stack, **extra: str) -> dict[str, str]:
    return clean_environment(
        PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}",
        COLDPLATE_SERVER=stack.address,
        COLDPLATE_CONTROL_SOCKET=str(stack.control_socket),
        **extra,
    )


def test_the_pages_have_examples() -> None:
    assert len(_GRPCURL) > 20
    assert len(_OTHERS) > 10
    assert len(blocks("python")) > 8


@pytest.mark.parametrize(("page", "command"), _OTHERS)
def test_shell_examples_run(documented: Stack, recorded: Path, page: str, command: str) -> None:
    env = environment(documented, COLDPLATE_STATE=str(recorded))
    result = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


@pytest.mark.parametrize("command", _GRPCURL)
def test_grpcurl_examples_run(documented: Stack, command: str) -> None:
    expanded = command.replace("$COLDPLATE_CONTROL_SOCKET", str(documented.control_socket))
    assert grpcurl(shlex.split(expanded)[1:], address=documented.address)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_both_versions_of_reflection_describe_every_service(documented: Stack, version: str) -> None:
    names = grpcurl(["-plaintext", "ADDRESS", "list"], version, documented.address)
    assert {f"coldplate.v1.{name}Service" for name in ("Generation", "Token", "Model", "Device")} <= set(names)
    for name in names:
        assert grpcurl(["-plaintext", "ADDRESS", "describe", name], version, documented.address) == [name]


def test_a_64_bit_seed_is_not_rounded_and_enums_are_always_there(documented: Stack) -> None:
    text = '{"text": "hi", "sampling": {"seed": "9007199254740993"}, "stopping": {"max_tokens": 2}}'
    (reply,) = grpcurl(
        ["-plaintext", "-d", text, "ADDRESS", "coldplate.v1.GenerationService/Generate"], address=documented.address
    )
    assert reply["seed"] == "9007199254740993"
    assert reply["choices"][0]["finishReason"] in {"FINISH_REASON_MAX_TOKENS", "FINISH_REASON_END_OF_TEXT"}


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.page)
def test_python_examples_run(documented: Stack, block: Block) -> None:
    result = subprocess.run(
        [sys.executable, "-c", block.text], env=environment(documented), capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


@pytest.mark.parametrize(("page", "command"), commands("console"))
def test_long_running_examples_name_what_exists(page: str, command: str) -> None:
    program, *arguments = shlex.split(command)
    program = Path(program).name
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets)
        return
    words = [word for word in arguments if re.fullmatch(r"[a-z]+", word)]
    subcommand = words[: 2 if words[:1] in (["board"], ["models"]) else 1] if program == "coldplate" else []
    shown = subprocess.run(
        [str(BIN / program), *subcommand, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(COLUMNS="200"),
    )
    for flag in (word.partition("=")[0] for word in arguments if word.startswith("--")):
        assert flag in shown.stdout, f"{page}: {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_the_api_page_lists_every_call() -> None:
    text = (ROOT / "docs/api.md").read_text()
    protos = (ROOT / "proto/coldplate/v1").glob("*.proto")
    calls = {call for proto in protos for call in re.findall(r"^  rpc (\w+)", proto.read_text(), re.MULTILINE)}
    assert calls <= set(re.findall(r"\w+", text))
