"""Where a governor records, and what happens when it cannot."""

from pathlib import Path

import structlog

from coldplate.paths import ensure_private_dir, state_dir
from coldplate_governor.explain.recorder import Recorder
from coldplate_governor.explain.ring import RingFile, RingUnusable

OFF = "off"

log = structlog.get_logger(__name__)


def default_file(governor: str) -> Path:
    """A file for each governor's name; what cannot be part of a file's name becomes ``_``."""
    safe = "".join(char if char.isalnum() or char in "-_" else "_" for char in governor)
    return state_dir() / "governor" / f"{safe}.jsonl"


def open_recorder(record: str | None, size_mib: int, governor: str, epoch: int) -> Recorder | None:
    """A recorder to the file ``record``, or to the default one; None when it is ``off``.

    Raises RingUnusable for a file that was named. A default place that cannot be used is said in the log, and nothing
    is recorded: a governor without a record is better than none.
    """
    if record == OFF:
        return None
    try:
        path = Path(record) if record is not None else _made(default_file(governor))
        recorder = Recorder(RingFile(path, size_mib << 20), epoch)
    except (RingUnusable, OSError, RuntimeError) as error:  # a user without a home has no default place
        if record is not None:
            raise
        log.warning("decisions are not recorded", reason=str(error), do="name a file with --record, or --record off")
        return None
    log.info("decisions are recorded", file=str(path), size_mib=size_mib)
    return recorder


def _made(path: Path) -> Path:
    ensure_private_dir(path.parent)
    return path
