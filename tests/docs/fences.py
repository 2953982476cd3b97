"""The fenced blocks of the documentation, which are its examples."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """``language`` is sh (run by tests), console (long-running: checked), python (run), or empty for a picture."""

    page: str
    language: str
    text: str


def blocks(language: str) -> list[Block]:
    return [
        Block(page.relative_to(ROOT).as_posix(), found[1], found[2])
        for page in PAGES
        for found in _FENCE.finditer(page.read_text())
        if found[1] == language
    ]


def commands(language: str) -> list[tuple[str, str]]:
    """(page, command) of each command in blocks of ``language``; a quote may span lines."""
    found = []
    for block in blocks(language):
        lines: list[str] = []
        for line in block.text.splitlines():
            lines.append(line)
            if _is_whole("\n".join(lines)):
                found.append((block.page, "\n".join(lines)))
                lines = []
        assert not lines, f"{block.page}: unfinished command {lines}"
    return [(page, command) for page, command in found if command.strip()]


def _is_whole(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True
