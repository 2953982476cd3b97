"""Starting, watching and stopping the parts of a stack in order."""

import os
import socket
import stat
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from coldplate.paths import ensure_private_dir
from coldplate.v1 import model_pb2
from coldplate_client.admin import AdminClient
from coldplate_client.client import Client
from coldplate_client.errors import ColdplateError
from coldplate_client.up.child import EXIT_UNUSABLE, Child, describe_exit
from coldplate_client.up.plan import StackPlan

_GENERATION = "coldplate.v1.GenerationService"
_MARK = "COLDPLATE_STACK"
_POLL_S = 0.1
_REPORT_INTERVAL_S = 2.0


class StackFailed(Exception):
    """The stack cannot start, or a part that it cannot do without has ended. One line, then the end of its log.

    ``unusable`` when its settings are the reason, so that the same again would fail again.
    """

    def __init__(self, message: str, *, unusable: bool = False) -> None:
        super().__init__(message)
        self.unusable = unusable


class Stack:
    """The parts of ``plan`` as child processes; ``with Stack(plan) as stack:`` starts them and stops them all.

    ``report`` gets lines for a person: what is being waited for, and what has died. Entering raises StackFailed when
    the service does not come up. The server's end is final: ``failure`` is then set; governor and board are restarted.
    """

    def __init__(self, plan: StackPlan, report: Callable[[str], None] = lambda line: None) -> None:
        self.plan = plan
        self.failure: StackFailed | None = None
        self._report = report
        self._mark = uuid.uuid4().hex
        self._children: list[Child] = []
        self._ended = threading.Event()
        self._told = ("", 0.0)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, timeout_s: float = 300.0) -> None:
        """Start everything and wait until the service is SERVING. Raises StackFailed."""
        for folder in (self.plan.run_dir, self.plan.control_socket.parent):
            try:
                ensure_private_dir(folder)
            except OSError as error:
                why = error.strerror or error
                raise StackFailed(
                    f"cannot use the folder {folder} for sockets and logs: {why}", unusable=True
                ) from None
        deadline = time.monotonic() + timeout_s
        if self.plan.board:
            board = self._launch("board", self.plan.board_command(), restart=True)
            self._wait("the board", board, lambda: _listening(Path(self.plan.board_address[5:])), deadline)
        server = self._launch("server", self.plan.server_command(), restart=False)
        with (
            AdminClient(f"unix:{self.plan.control_socket}") as admin,
            Client(self.plan.listen, retries=False) as client,
        ):
            self._wait("the server", server, lambda: _is_up(admin, server.pid), deadline)
            if self.plan.governor:
                self._launch("governor", self.plan.governor_command(), restart=True)
            self._wait("the model", server, lambda: self._is_serving(client), deadline)

    def wait(self) -> None:
        """Wait until a part ends that the stack cannot do without. Raises StackFailed then."""
        self._ended.wait()
        assert self.failure is not None
        raise self.failure

    def stop(self) -> list[str]:
        """Stop governor, server (which drains) and board, in that order; returns what then still ran and was ended."""
        order = {"governor": 0, "server": 1, "board": 2}
        for child in sorted(self._children, key=lambda child: order[child.name]):
            child.stop(self.plan.drain_grace_s + 10 if child.name == "server" else 5.0)
        self._children.clear()
        left = _end_marked(self._mark)
        self._remove_sockets()
        return left

    def _launch(self, name: str, command: list[str], *, restart: bool) -> Child:
        environment = {
            **os.environ,
            **self.plan.environment,
            _MARK: self._mark,
            # Workers' sockets go where this stack looks after them.
            "XDG_RUNTIME_DIR": str(self.plan.run_dir),
            "TMPDIR": str(self.plan.run_dir),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }
        log_path = self.plan.run_dir / f"{name}.log"
        child = Child(name, command, log_path, environment, restart=restart, on_end=self._on_end)
        child.start()
        self._children.append(child)
        return child

    def _on_end(self, child: Child, code: int, again: bool) -> None:
        # The last line of an end for unusable settings names them; what comes before is of no use to anybody.
        lines = child.last_lines()[-1:] if code == EXIT_UNUSABLE else child.last_lines()
        text = "\n  ".join([f"the {child.name} {describe_exit(code)}", *lines])
        if again:
            self._report(f"{text}\n  starting it again; log: {child.log_path}")
        else:
            self.failure = StackFailed(f"{text}\n  log: {child.log_path}", unusable=code == EXIT_UNUSABLE)
            self._ended.set()

    def _wait(self, what: str, child: Child, probe: Callable[[], bool], deadline: float) -> None:
        while not (child.alive and probe()):
            if self._ended.wait(_POLL_S) and self.failure:
                raise self.failure
            if time.monotonic() > deadline:
                raise StackFailed(f"{what} is not ready in time; log: {child.log_path}")

    def _is_serving(self, client: Client) -> bool:
        with suppress(ColdplateError):
            models = client.models()
            for model in models:
                if model.state == model_pb2.MODEL_STATE_FAILED:
                    raise StackFailed(f"model {model.name} cannot be served: {model.state_detail}", unusable=True)
                self._tell(f"{model.name}: {model.state_detail or 'ready'}")
            loading = any(
                replica.state == model_pb2.MODEL_STATE_LOADING for model in models for replica in model.replicas
            )
            return not loading and client.health(_GENERATION)
        return False

    def _tell(self, line: str) -> None:
        """Report ``line`` when it is news, and a mere change of its numbers only now and then."""
        now = time.monotonic()
        before, before_s = self._told
        if line == before or (_words(line) == _words(before) and now - before_s < _REPORT_INTERVAL_S):
            return
        self._told = line, now
        self._report(line)

    def _remove_sockets(self) -> None:
        """Sockets whose owner was killed stay behind in the file system."""
        for path in [self.plan.control_socket, *self.plan.run_dir.rglob("*"), Path(self.plan.board_address[5:])]:
            with suppress(OSError):
                if stat.S_ISSOCK(path.lstat().st_mode) and not _listening(path):
                    path.unlink()
        for folder in sorted(self.plan.run_dir.rglob("*/"), reverse=True):
            with suppress(OSError):
                folder.rmdir()  # those that are empty now


def _words(line: str) -> str:
    return "".join(char for char in line if not char.isdigit())


def _is_up(admin: AdminClient, pid: int | None) -> bool:
    """Whether it is our server that answers, and not one that was there before."""
    with suppress(ColdplateError):
        return admin.server_info().pid == pid
    return False


def _listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _end_marked(mark: str) -> list[str]:
    """End every process that inherited ``mark``: workers whose server was killed, say. Returns their commands."""
    import psutil

    left = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(_MARK) == mark:
                left.append((process, " ".join(process.cmdline()[:4])))
                process.terminate()
    _, alive = psutil.wait_procs([process for process, _ in left], timeout=3)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=3)
    return [command for _, command in left]
