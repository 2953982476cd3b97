"""What a clock was set to before a lever touched it, on disk, so that it is put back even after a kill -9."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from coldplate.paths import ensure_private_dir
from coldplate_governor.levers.base import LeverError

_LOCK_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Saved:
    """A former setting: whose, by which lever, and the word that puts it back."""

    device: str
    lever: str
    original: str


class SavedSetting:
    """The file of one device in ``folder``. A restart of the machine ends settings: then it means nothing any more."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder = folder
        self._path = folder / f"{device.replace(':', '-')}.json"

    @contextlib.contextmanager
    def held(self, patience_s: float) -> Iterator[None]:
        """Be the only process that uses a lever of this device. Raises LeverError when another one does."""
        try:
            ensure_private_dir(self._folder)
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LeverError(
                f"{self._folder}: {error.strerror or error}; what was set before has to be kept there: "
                "choose another folder with --frequency-state"
            ) from error
        try:
            _wait_for(lock, patience_s)
            yield
        finally:
            os.close(lock)

    def load(self) -> Saved | None:
        """What has to be put back, None when there is nothing, or only something from before the machine's start."""
        return _read(self._path)

    def store(self, saved: Saved) -> None:
        """Raises LeverError when it cannot be kept: then nothing may be set."""
        draft = self._path.with_suffix(".new")
        try:
            with draft.open("w") as file:
                json.dump(asdict(saved) | {"boot": _boot_id()}, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError as error:
            raise LeverError(f"{self._path}: {error.strerror or error}; what was set before has to be kept") from error

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


def leftovers(folder: Path) -> list[Saved]:
    """Settings of this start of the machine that nobody has put back."""
    return [saved for path in sorted(folder.glob("*.json")) if (saved := _read(path)) is not None]


def _read(path: Path) -> Saved | None:
    try:
        data = json.loads(path.read_text())
        saved = Saved(data["device"], data["lever"], data["original"])
        valid = all(isinstance(word, str) for word in (saved.device, saved.lever, saved.original))
        return saved if valid and data["boot"] == _boot_id() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _wait_for(lock: int, patience_s: float) -> None:
    give_up_s = time.monotonic() + patience_s
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= give_up_s:
                raise LeverError("another governor on this machine uses the frequency lever of this device") from None
            time.sleep(_LOCK_POLL_S)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
