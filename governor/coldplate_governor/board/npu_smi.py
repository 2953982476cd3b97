"""A stand-in for `npu-smi` that shows a simulated board in the tool's own layouts and words.

Takes the arguments of the real one; the board is the one ``$COLDPLATE_BOARD`` names. Known are ``info``, ``info -l``,
``info -m``, ``info -t TYPE -i NPU [-c CHIP]`` and ``set -t nve-level -i NPU -c CHIP -d LEVEL``. Standard library only,
for it is started once a second.
"""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from coldplate_governor.board import npu_smi_pages as pages
from coldplate_governor.board import npu_smi_table as table
from coldplate_governor.board.client import BoardClient, BoardRefused, BoardUnreachable

BOARD_VARIABLE = "COLDPLATE_BOARD"
_HOW_LONG_A_HANG_LASTS_S = 86_400.0
_NO_ACCESS, _CARD_DROPPED = -8005, -8012
_FAILURES = {
    _NO_ACCESS: "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi module initialize failed. ret is -8005",
    -8020: "dcmi model initialized failed, because the device is used. ret is -8020",
}
_NOT_SUPPORTED = 1
_BAD_ARGUMENT = 1


class ToolNotWritten(OSError):
    """The stand-in could not be put where it was wanted; the text says why."""


class _Fails(Exception):
    """The tool ends with this text and this exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def main(argv: list[str]) -> int:
    """Print what `npu-smi ARGV` would; returns the exit code."""
    address = os.environ.get(BOARD_VARIABLE, "")
    try:
        if not address:
            raise _Fails(f"npu-smi (simulated): ${BOARD_VARIABLE} names no board: expected unix:/path", _BAD_ARGUMENT)
        with BoardClient(address, _HOW_LONG_A_HANG_LASTS_S) as board:
            text = _answer(argv, board)
    except _Fails as failure:
        sys.stdout.write(f"{failure}\n")
        return failure.code
    except (BoardUnreachable, ValueError):
        sys.stdout.write(f"{_dcmi_text(_NO_ACCESS)}\n")
        return _exit_code(_NO_ACCESS)
    sys.stdout.write(text)
    return 0


def write_tool(folder: Path, address: str) -> Path:
    """Put an executable ``npu-smi`` for the board at ``address`` into ``folder``. Raises ToolNotWritten."""
    path = folder / "npu-smi"
    root = Path(__file__).resolve().parents[2]  # of this package, wherever it runs from
    text = (
        "#!/bin/sh\n# A stand-in that shows a simulated board.\n"
        f"{BOARD_VARIABLE}={shlex.quote(address)} PYTHONPATH={shlex.quote(str(root))}${{PYTHONPATH:+:$PYTHONPATH}} "
        f'exec {shlex.quote(sys.executable)} -m coldplate_governor.board.npu_smi "$@"\n'
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and "shows a simulated board" not in path.read_text(errors="replace"):
            raise ToolNotWritten(f"{path} is there already, and is no stand-in: choose another folder")
        path.write_text(text)
        path.chmod(0o755)
    except OSError as error:
        if isinstance(error, ToolNotWritten):
            raise
        raise ToolNotWritten(f"{path}: {error.strerror or error}") from None
    return path


def _answer(argv: list[str], board: BoardClient) -> str:
    command, flags = argv[:1], _flags(argv[1:])
    facts = board.describe()
    if facts["tool_code"] is not None:
        code = int(facts["tool_code"])
        raise _Fails(_dcmi_text(code), _exit_code(code))
    if command == ["set"]:
        return _set(flags, facts, board)
    if command != ["info"]:
        raise _Fails("Usage: npu-smi info|set ...", _BAD_ARGUMENT)
    if "-l" in flags:
        return pages.listing(facts)
    if "-m" in flags:
        return pages.mapping(facts)
    if "-t" not in flags:
        return table.whole(facts, _read_all(facts, board))
    page = pages.PAGES.get(flags["-t"])
    if page is None:
        raise _Fails("Error parameter of -t", _BAD_ARGUMENT)
    npu, chip = _number(flags, "-i"), _number(flags, "-c") if "-c" in flags else None
    chips = [(place, index) for index, (card, place) in enumerate(facts["npu_ids"]) if card == npu]
    if not chips:
        raise _Fails("Error parameter of -i", _BAD_ARGUMENT)
    wanted = [pair for pair in chips if chip is None or pair[0] == chip]
    if not wanted:
        raise _Fails("Error parameter of -c", _BAD_ARGUMENT)
    readings = {place: _read(index, board) for place, index in wanted}
    text = pages.render(page, facts, npu, len(chips), readings, whole_card=chip is None)
    if text is None:
        raise _Fails(f"This device does not support querying {flags['-t']}.", _NOT_SUPPORTED)
    return text


def _set(flags: dict[str, str], facts: dict[str, Any], board: BoardClient) -> str:
    if flags.get("-t") != "nve-level":
        raise _Fails("Error parameter of -t", _BAD_ARGUMENT)
    place = [_number(flags, "-i"), _number(flags, "-c")]
    if place not in facts["npu_ids"]:
        raise _Fails("Error parameter of -i", _BAD_ARGUMENT)
    level = _number(flags, "-d")
    if facts["levels"] and level >= len(facts["levels"]):
        raise _Fails("Error parameter of -d", _BAD_ARGUMENT)
    try:
        board.set_level(facts["npu_ids"].index(place), level)
    except BoardRefused:
        text = pages.lines({"Status": "Error", "Message": "This device does not support setting nve-level."})
        raise _Fails(text.rstrip("\n"), _NOT_SUPPORTED) from None
    return pages.lines({"Status": "OK", "Message": "The nve-level of the chip is set successfully."})


def _read(index: int, board: BoardClient) -> dict[str, Any]:
    try:
        return board.read(index)
    except BoardRefused:
        raise _Fails(_dcmi_text(_CARD_DROPPED), _exit_code(_CARD_DROPPED)) from None


def _read_all(facts: dict[str, Any], board: BoardClient) -> dict[int, dict[str, Any]]:
    """Chips that answer, by number; those that were lost have no row."""
    found = {}
    for index in range(facts["chips"]):
        try:
            found[index] = board.read(index)
        except BoardRefused:
            continue
    if not found:
        raise _Fails(_dcmi_text(_CARD_DROPPED), _exit_code(_CARD_DROPPED))
    return found


def _flags(argv: list[str]) -> dict[str, str]:
    """Each flag with the word behind it, or an empty one."""
    found: dict[str, str] = {}
    for at, word in enumerate(argv):
        if word.startswith("-") and not word[1:].isdigit():
            behind = argv[at + 1] if at + 1 < len(argv) else ""
            found[word] = "" if behind.startswith("-") and not behind[1:].isdigit() else behind
    return found


def _number(flags: dict[str, str], name: str) -> int:
    text = flags.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise _Fails(f"Error parameter of {name}", _BAD_ARGUMENT)
    return int(text)


def _dcmi_text(code: int) -> str:
    return _FAILURES.get(code, f"dcmi module initialize failed. ret is {code}")


def _exit_code(code: int) -> int:
    """What a shell sees of DCMI's return value."""
    return code & 0xFF or 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
