"""Real processes on loopback: started, awaited by what they answer, and ended by id, with nothing left behind."""

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.checkpoints import Checkpoint

BIN = Path(sys.executable).parent
SLOW_DEVICE = "fault:delay=20ms@1-,cpu"  # steps of at least 20 ms; needs the engine flag test-faults
GENERATION = "coldplate.v1.GenerationService"
T = TypeVar("T")
LIVE: list["Process"] = []  # for the logs of a failed test


@cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="coldplate-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


def new_folder() -> Path:
    """A folder with a short path, for a socket's has 108 bytes; removed when the tests are over."""
    return Path(tempfile.mkdtemp(dir=_root()))


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(what: str, probe: Callable[[], T | None], timeout_s: float = 10.0, every_s: float = 0.02) -> T:
    """Ask ``probe`` until it answers something true, and return that.

    Raises TimeoutError naming ``what``.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        if answer := probe():
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        time.sleep(every_s)


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without settings of ours, for a child."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLDPLATE_")}
    return {**kept, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1", **extra}


class Process:
    """A started program and its log. A context manager that ends the program and everything it started."""

    def __init__(
        self,
        program: str,
        args: Sequence[str],
        folder: Path,
        env: Mapping[str, str] | None = None,
        executable: Path | None = None,
    ) -> None:
        """``program`` is one of ours, and names the log; ``executable`` is run in its place."""
        self.log_path = folder / f"{program}-{time.monotonic_ns()}.log"
        with self.log_path.open("wb") as log:
            self._popen = subprocess.Popen(
                [str(executable or BIN / program), *args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment(**{"XDG_STATE_HOME": str(folder), **(env or {})}),
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self.started_at = time.time()
        self._descendants: dict[int, psutil.Process] = {}
        LIVE.append(self)

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def log_tail(self, lines: int = 60) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def wait(self, timeout_s: float = 20.0) -> int:
        """Return the exit code; raises TimeoutError with the end of the log."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.log_path.name}: still running after {timeout_s} s\n{self.log_tail()}") from None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def descendants(self) -> list[psutil.Process]:
        """Everything it has started, remembered across calls so that orphans are found, too."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children(recursive=True):
                self._descendants[child.pid] = child
        return [child for child in self._descendants.values() if _alive(child)]

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def stop(self, timeout_s: float = 20.0) -> int:
        """End it with SIGTERM; returns the exit code. Raises AssertionError when a child of it stays behind."""
        self.descendants()
        if self.exit_code is None:
            self.signal(signal.SIGTERM)
        try:
            code = self.wait(timeout_s)
            _, left = psutil.wait_procs(self.descendants(), timeout=15.0)
        finally:
            self.kill()
        assert not left, f"{self.log_path.name}: left behind {[' '.join(_command(child)) for child in left]}"
        return code

    def kill(self) -> None:
        """End it and what it has started, by id, at once."""
        remaining = self.descendants()
        if self.exit_code is None:
            self.signal(signal.SIGKILL)
            self._popen.wait(10)
        for child in remaining:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        if self in LIVE:
            LIVE.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            sys.stderr.write(f"--- {self.log_path.name}\n{self.log_tail()}\n")
            self.kill()
        else:
            self.stop()


class Stack(Process):
    """A server and the workers it starts.

    ``models`` are served under their keys. ``workers`` as for ``--worker``; default: one CPU worker a model.
    ``engine_args`` and ``server_args`` are flags without the leading dashes, such as "kv-cache-tokens=64".
    """

    def __init__(
        self,
        models: Mapping[str, Checkpoint | Path],
        *,
        workers: Sequence[str] = (),
        engine_args: Sequence[str] = (),
        server_args: Sequence[str] = (),
        port: int | None = None,
        metrics_port: int | None = None,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        start_timeout_s: float = 90.0,
        own_threads: bool = False,
    ) -> None:
        """``own_threads``: the workers choose how many, rather than one."""
        folder = folder or new_folder()
        self.start_timeout_s = start_timeout_s
        self.folder = folder
        self.models = {name: model.path if isinstance(model, Checkpoint) else model for name, model in models.items()}
        self.address = f"127.0.0.1:{port or free_port()}"
        self.metrics_address = f"127.0.0.1:{metrics_port or free_port()}"
        self.control_socket = folder / "control.sock"
        given = {argument.partition("=")[0] for argument in engine_args}
        threads = () if "threads" in given or own_threads else ("threads=1",)
        args = [
            f"--listen={self.address}",
            f"--metrics-listen={self.metrics_address}",
            f"--control-socket={self.control_socket}",
            *(f"--model={name}={path}" for name, path in self.models.items()),
            *(f"--worker={spec}" for spec in workers),
            *(f"--engine-arg=--{argument}" for argument in (*threads, *engine_args)),
            *(f"--{argument}" for argument in server_args),
        ]
        super().__init__("coldplate-server", args, folder, {"XDG_RUNTIME_DIR": str(folder), **(env or {})})
        self.channel = grpc.insecure_channel(self.address, LARGE_MESSAGES)
        self._probe = grpc.insecure_channel(self.address, [("grpc.use_local_subchannel_pool", 1)])
        self.control = grpc.insecure_channel(f"unix:{self.control_socket}")

    def health(self, service: str = GENERATION, timeout_s: float = 1.0) -> str:
        """The health status by name, or the name of the status code when there is no answer.

        Asked over a connection of its own, as a load balancer would.
        """
        stub = health_pb2_grpc.HealthStub(self._probe)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError as error:
            return str(error.code().name)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    def wait_ready(self) -> Self:
        """Wait until the service and every model answer SERVING, for up to ``start_timeout_s``."""
        for service in (GENERATION, *(f"model/{name}" for name in self.models)):
            until(f"{service} SERVING", partial(self._serving, service), self.start_timeout_s, 0.1)
        return self

    def _serving(self, service: str) -> bool:
        if self.exit_code is not None:
            raise AssertionError(f"the server ended with {self.exit_code} while starting\n{self.log_tail()}")
        return self.health(service) == "SERVING"

    def worker_pids(self) -> list[int]:
        """Of the workers themselves, not of what they have started."""
        return sorted(child.pid for child in self.descendants() if "coldplate_engine.main" in _command(child))

    def __enter__(self) -> Self:
        try:
            return self.wait_ready()
        except BaseException:
            sys.stderr.write(f"--- {self.log_path.name}\n{self.log_tail()}\n")
            self.kill()
            raise

    def stop(self, timeout_s: float = 20.0) -> int:
        self.descendants()
        for channel in (self.channel, self._probe, self.control):
            channel.close()
        code = super().stop(timeout_s)
        assert "unexpected error" not in self.log(), self.log_tail()
        return code


LARGE_MESSAGES = [("grpc.max_send_message_length", 64 << 20), ("grpc.max_receive_message_length", 64 << 20)]


def governor(stack: Stack, *args: str) -> Process:
    """A governor of ``stack``; ``args`` as on its command line."""
    return Process("coldplate-governor", [f"--control=unix:{stack.control_socket}", *args], stack.folder)


@contextlib.contextmanager
def board(*args: str) -> Iterator[tuple[Process, str]]:
    """A simulated board and its address, awaited until it accepts connections."""
    folder = new_folder()
    path = folder / "board.sock"
    with Process("coldplate-board", [f"--listen=unix:{path}", *args], folder) as process:
        until("the board listens", lambda: _accepts(path), 20)
        yield process, f"unix:{path}"


def run(
    program: str, *args: str, timeout_s: float = 60.0, stdin: int = subprocess.DEVNULL
) -> subprocess.CompletedProcess[str]:
    """Run a program of ours to its end and return what it said."""
    return subprocess.run(
        [str(BIN / program), *args],
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=clean_environment(),
        check=False,
    )


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
