"""Running a vendor's command-line tool without ever depending on it.

Such tools hang, in the kernel too, and do not bear being started twice at once. So there is one run at a time on the
machine: a run holds a lock that the tool itself inherits, which means that a tool that cannot be killed still keeps
every other from being started. A run has a hard time limit after which its whole session is killed, and ends with the
process that started it. What a run has printed is shared between processes, so that eight agents cost one run a second.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from coldplate.parent import end_with_parent
from coldplate.paths import ensure_private_dir, runtime_dir

_MAX_OUTPUT_BYTES = 1 << 20
_REAP_S = 0.5
_LOCK_POLL_S = 0.01
_BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_NPU_SMI_PLACES = ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")

_running: set[int] = set()


class ToolError(Exception):
    """The tool gave no output; the text says why. ``timed_out``: it did not answer; ``absent``: it cannot start."""

    def __init__(self, text: str, timed_out: bool = False, absent: bool = False) -> None:
        super().__init__(text)
        self.timed_out = timed_out
        self.absent = absent


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a run printed on both its streams, its exit code, and the monotonic second at which it was started.

    ``failures`` counts the runs in a row that did not work, this one included.
    """

    text: str
    code: int
    at_s: float
    failures: int = 0


class ToolRunner:
    """Runs the tool at ``path``. Locks and shared outputs are in ``folder`` (default: this user's run-time folder).

    Without a folder that can be written, runs of different processes are not kept apart.
    """

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self.path = path
        self._memory: dict[tuple[str, ...], dict[str, Any]] = {}
        self._stuck: subprocess.Popen[bytes] | None = None
        digest = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:16]
        self._prefix: Path | None = None
        with contextlib.suppress(OSError):
            if folder is None:
                ensure_private_dir(runtime_dir())
            self._prefix = ensure_private_dir(folder or runtime_dir() / "tools") / f"{path.name}-{digest}"

    def run(self, args: tuple[str, ...], timeout_s: float) -> ToolOutput:
        """Run the tool once. Waits up to half of ``timeout_s`` for a run of somebody else. Raises ToolError."""
        with self._lock(timeout_s / 2) as lock:
            return self._execute(lock, args, timeout_s)

    def cached(
        self, args: tuple[str, ...], max_age_s: float, timeout_s: float, worked: Callable[[str], bool] = bool
    ) -> ToolOutput:
        """The output of a run of any process at most ``max_age_s`` ago, or of a new one. Raises ToolError.

        After a run that failed, or whose text did not ``worked``, the next one waits for 1 s, then longer, up to 30 s;
        until then its outcome is handed on.
        """
        if found := self._usable(args, max_age_s):
            return _unpack(found)
        before = self._load(args)
        try:
            with self._lock(timeout_s / 2) as lock:
                if found := self._usable(args, max_age_s):  # somebody else has just run it
                    return _unpack(found)
                failures = (before or {}).get("failures", 0)
                try:
                    output = self._execute(lock, args, timeout_s)
                    failures = 0 if worked(output.text) else failures + 1
                    entry = asdict(output) | {"failures": failures, "error": None}
                except ToolError as error:
                    entry = {"text": "", "code": 0, "at_s": time.monotonic(), "failures": failures + 1}
                    entry["error"] = [str(error), error.timed_out, error.absent]
                self._store(args, entry)
                return _unpack(entry)
        except _Busy:
            if found := self._usable(args, max_age_s):
                return _unpack(found)
            raise

    def _execute(self, lock: int | None, args: tuple[str, ...], timeout_s: float) -> ToolOutput:
        if self._stuck is not None and self._stuck.poll() is None:
            raise ToolError(
                f"{self._said(args)} (process {self._stuck.pid}) cannot be killed; none is started beside it"
            )
        self._stuck = None
        started_s = time.monotonic()
        try:
            popen = subprocess.Popen(
                [str(self.path), *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
                pass_fds=() if lock is None else (lock,),
                preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGKILL),
            )
        except (OSError, subprocess.SubprocessError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ToolError(f"{self.path}: cannot be started: {reason}", absent=True) from error
        _running.add(popen.pid)
        try:
            _write_owner(lock, popen.pid)
            data = _read(popen, started_s + timeout_s)
        finally:
            _kill_session(popen.pid)
            _running.discard(popen.pid)
            assert popen.stdout is not None
            popen.stdout.close()
            try:
                code: int | None = popen.wait(_REAP_S)
            except subprocess.TimeoutExpired:
                code, self._stuck = None, popen
        if code is None:
            raise ToolError(f"{self._said(args)} (process {popen.pid}) hangs and cannot be killed", timed_out=True)
        if data is None:
            raise ToolError(f"{self._said(args)} gave no answer in {timeout_s:g} s and was killed", timed_out=True)
        return ToolOutput(data.decode(errors="replace"), code, started_s)

    @contextlib.contextmanager
    def _lock(self, patience_s: float) -> Iterator[int | None]:
        """Hold the machine's one place for a run of this tool. Raises ToolError when it is not free in time."""
        lock = None
        if self._prefix is not None:
            with contextlib.suppress(OSError):
                lock = os.open(f"{self._prefix}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if lock is None:
            yield None
            return
        try:
            if not _locked_within(lock, patience_s) and not (_kill_orphan(lock) and _locked_within(lock, _REAP_S)):
                raise _Busy(f"{self.path.name} is busy: another run of it did not end in {patience_s:g} s", True)
            yield lock
        finally:
            if self._stuck is None:  # a tool that could not be killed goes on holding its lock
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _usable(self, args: tuple[str, ...], max_age_s: float) -> dict[str, Any] | None:
        entry = self._load(args)
        if entry is None:
            return None
        failures = entry["failures"]
        holds_s = _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1] if failures else max_age_s
        return entry if 0 <= time.monotonic() - entry["at_s"] < holds_s else None

    def _load(self, args: tuple[str, ...]) -> dict[str, Any] | None:
        entry = self._memory.get(args)
        if self._prefix is not None:
            try:
                shared = json.loads(self._shared(args).read_bytes())
                if shared["boot"] == _boot_id() and (entry is None or shared["entry"]["at_s"] > entry["at_s"]):
                    entry = shared["entry"] | asdict(_unpack(shared["entry"] | {"error": None}))
            except (OSError, ValueError, KeyError, TypeError):
                pass  # none yet, or half of one: run it ourselves
        return entry

    def _store(self, args: tuple[str, ...], entry: dict[str, Any]) -> None:
        self._memory[args] = entry
        if self._prefix is None:
            return
        place = self._shared(args)
        draft = place.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            draft.write_text(json.dumps({"boot": _boot_id(), "entry": entry}))
            draft.replace(place)

    def _shared(self, args: tuple[str, ...]) -> Path:
        name = hashlib.sha256("\0".join(args).encode()).hexdigest()[:16]
        return Path(f"{self._prefix}-{name}.json")

    def _said(self, args: tuple[str, ...]) -> str:
        return " ".join((self.path.name, *args))


class _Busy(ToolError):
    """Somebody else's run holds the lock."""


def end_tools() -> None:
    """Kill the run under way in this process, if any: for its signal handler."""
    for session in list(_running):
        _kill_session(session)


def find_npu_smi() -> Path | None:
    """Where ``npu-smi`` is: on the path, or where drivers put it."""
    for place in (shutil.which("npu-smi"), *_NPU_SMI_PLACES):
        if place and os.access(place, os.X_OK):
            return Path(place)
    return None


def _unpack(entry: dict[str, Any]) -> ToolOutput:
    if entry["error"] is not None:
        text, timed_out, absent = entry["error"]
        raise ToolError(str(text), bool(timed_out), bool(absent))
    return ToolOutput(str(entry["text"]), int(entry["code"]), float(entry["at_s"]), int(entry["failures"]))


def _read(popen: subprocess.Popen[bytes], deadline_s: float) -> bytes | None:
    """What the process prints until it ends, None when it does not end in time."""
    assert popen.stdout is not None
    fd = popen.stdout.fileno()
    os.set_blocking(fd, False)
    data, ended, open_ = bytearray(), False, True
    while True:
        while open_ and len(data) < _MAX_OUTPUT_BYTES and select.select([fd], [], [], 0)[0]:
            chunk = os.read(fd, 65536)
            data += chunk
            open_ = bool(chunk)
        if ended or len(data) >= _MAX_OUTPUT_BYTES:
            return bytes(data)
        left = deadline_s - time.monotonic()
        if left <= 0:
            return None
        if open_:
            select.select([fd], [], [], min(left, 0.05))
        else:
            time.sleep(min(left, 0.005))
        # A descendant may keep the pipe open for good: the end of the tool itself is what counts.
        ended = popen.poll() is not None


def _locked_within(lock: int, patience_s: float) -> bool:
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_LOCK_POLL_S)


def _write_owner(lock: int | None, session: int) -> None:
    if lock is not None:
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps([os.getpid(), _started(os.getpid()), session]).encode(), 0)


def _kill_orphan(lock: int) -> bool:
    """Kill the session that holds the lock when the process that started it has gone; whether there was one.

    While the lock is held by that session its number cannot have been given to another.
    """
    try:
        owner, started, session = json.loads(os.pread(lock, 200, 0))
        if _started(int(owner)) == started:
            return False
        _kill_session(int(session))
    except (ValueError, TypeError):
        return False
    return True


def _kill_session(session: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


def _started(pid: int) -> str | None:
    """When a process was started, in the kernel's ticks since boot; None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
