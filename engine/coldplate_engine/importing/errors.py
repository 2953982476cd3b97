"""The one error of importing."""

from pathlib import Path


class ImportFailed(Exception):  # noqa: N818 - the CLI shows it as it stands
    """A file that cannot be imported: one line for a person, the file and the reason."""

    def __init__(self, file: Path | str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
