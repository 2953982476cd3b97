"""The one error of importing."""

from pathlib import Path


class ImportFailed(Exception):
    """A file that cannot be imported: one line for a person, the file and the reason."""

    def __init__(self, file: Path | str, reason: str) -> None:
        # The reason may quote the file, which may hold anything.
        super().__init__(f"{file}: {''.join(char if char.isprintable() else '?' for char in reason)}")
