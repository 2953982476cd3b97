"""Reading a recording: the file before and the file itself, line by line, with what is wrong of it named."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldplate_governor.explain.lines import LineDamaged, unseal

_TAIL_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 24
_KINDS = frozenset({"start", "group", "state", "tick", "gap"})


class NoRecording(Exception):
    """There is nothing to read; the text says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One whole line: what it says, and where it stands."""

    body: dict[str, Any]
    file: Path
    line: int

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def place(self) -> str:
        return f"{self.file.name} line {self.line}"


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that cannot be read, or lines that are missing before ``line``.

    ``cut``: the governor was killed, or the disk was full, within this line; nothing is wrong with the rest.
    """

    file: Path
    line: int
    problem: str
    cut: bool = False

    @property
    def place(self) -> str:
        return f"{self.file.name} line {self.line}"


def files_of(path: Path) -> list[Path]:
    """The files of the recording at ``path``, oldest first. Raises NoRecording."""
    found = [file for file in (path.with_name(path.name + ".1"), path) if file.is_file()]
    if not found:
        raise NoRecording(f"{path}: there is no such file")
    return found


def read(path: Path) -> Iterator[Entry | Damage]:
    """Every line of the recording at ``path``, in the order it was written. Raises NoRecording."""
    for file in files_of(path):
        try:
            yield from _read_file(file)
        except OSError as error:
            raise NoRecording(f"{file}: {error.strerror}") from error


def last_moment(path: Path) -> float | None:
    """The monotonic seconds of the newest tick, None when the end of the recording has none."""
    with files_of(path)[-1].open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - _TAIL_BYTES))
        tail = stream.read().split(b"\n")
    for line in reversed(tail):
        try:
            body = unseal(line)
        except LineDamaged:
            continue
        if body.get("kind") == "tick":
            return float(body["at"])
    return None


def _read_file(file: Path) -> Iterator[Entry | Damage]:
    expected: int | None = None
    held: Damage | None = None  # a bad line: what comes next tells whether it was only cut
    number = 0
    with file.open("rb") as stream:
        while line := stream.readline(_LONGEST_LINE_BYTES):
            number += 1
            ended = line.endswith(b"\n")
            try:
                body = unseal(line.rstrip(b"\n"))
                problem = None if body.get("kind") in _KINDS else f"is of the unknown kind {body.get('kind')!r}"
            except LineDamaged as error:
                problem = str(error)
            if problem is not None:
                if held is not None:
                    yield held
                held = Damage(
                    file, number, "was cut: the governor ended within it" if not ended else problem, not ended
                )
                continue
            begins = body["kind"] == "start"
            if held is not None:
                cut = Damage(file, held.line, "was cut: the governor ended within it, and was started again", True)
                yield cut if begins else held
                expected = body.get("n") if not begins else None
                held = None
            elif not begins and body.get("n") != expected:
                yield Damage(file, number, "follows on lines that are missing")
            yield Entry(body, file, number)
            expected = 2 if begins else int(body["n"]) + 1
    if held is not None:
        yield held
