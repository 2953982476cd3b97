"""A recording's file of bounded size: half of it is the file itself, half the one before it, ``FILE.1``.

No write ever blocks on another process, and none leaves half a line behind unless the process dies in the middle of it.
"""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from coldplate_governor.explain.lines import LineDamaged, unseal

MIN_BYTES = 1 << 20
_FIRST_LINE_BYTES = 4096


class RingUnusable(Exception):
    """The file cannot be recorded to; the text says why and what to do."""


class RingFile:
    """``path`` and ``path.1`` together stay below ``limit_bytes``.

    Raises RingUnusable when the file belongs to another governor that runs, or is something else than a recording.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        if limit_bytes < MIN_BYTES:
            raise ValueError(f"the size is {limit_bytes} bytes: expected at least {MIN_BYTES}")
        self.path = path
        self.before = path.with_name(path.name + ".1")
        self._half = limit_bytes // 2
        self._torn = False
        try:
            self._fd = _open(path)
        except OSError as error:
            raise RingUnusable(f"{path}: {error.strerror}") from error
        try:
            self._size = _check(self._fd, path)
            # The last start may have been killed in the middle of a line.
            self._torn = self._size > 0 and os.pread(self._fd, 1, self._size - 1) != b"\n"
        except (OSError, RingUnusable) as error:
            os.close(self._fd)
            raise RingUnusable(f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)) from error

    @property
    def size_bytes(self) -> int:
        """Of the present file."""
        return self._size

    def has_room(self, count: int) -> bool:
        return self._size + count <= self._half

    def append(self, data: bytes) -> None:
        """Write whole lines, or none of them. Raises OSError, such as for a full disk."""
        if self._torn:
            data = b"\n" + data
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            try:
                os.ftruncate(self._fd, self._size)  # needs no space, so half a line does not stay
            except OSError:
                self._torn = True
                self._size = os.fstat(self._fd).st_size
            raise
        self._size += written
        self._torn = False

    def rotate(self) -> None:
        """Begin an empty file; the present one becomes ``path.1``. Raises OSError, and then nothing has changed.

        A kill between the two renames leaves ``path.1`` whole and ``path`` missing: nothing is lost.
        """
        fresh = self.path.with_name(self.path.name + ".new")
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        descriptor = _open(fresh)
        try:
            self.path.replace(self.before)
            fresh.replace(self.path)
        except OSError:
            os.close(descriptor)
            raise
        os.close(self._fd)
        self._fd, self._size, self._torn = descriptor, 0, False

    def close(self) -> None:
        os.close(self._fd)


def _open(path: Path) -> int:
    """A locked descriptor: the lock goes with the process, whatever ends it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RingUnusable(f"{path}: another governor records there: give this one another --record") from None
    except OSError:
        pass  # a file system without locks
    return descriptor


def _check(descriptor: int, path: Path) -> int:
    """The size of the file. Raises RingUnusable when it holds something else than a recording."""
    size = os.fstat(descriptor).st_size
    if size == 0:
        return 0
    first = os.pread(descriptor, _FIRST_LINE_BYTES, 0).partition(b"\n")[0]
    try:
        kind = unseal(first).get("kind")
    except LineDamaged:
        kind = None
    # A governor that was killed within its first line has left a piece of it.
    if kind != "start" and not first.startswith(b'{"kind":"start"'):
        raise RingUnusable(f"{path}: is no recording of a governor, and is left as it is: name another file")
    return size
