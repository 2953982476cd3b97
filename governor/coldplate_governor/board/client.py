"""Talking to a simulated board. Standard library only, synchronous, safe to share between threads."""

import json
import socket
import threading
from dataclasses import dataclass
from typing import Any, Self

DEFAULT_TIMEOUT_S = 2.0


class BoardUnreachable(ConnectionError):
    """No board answers at the address, or not in time."""


class BoardRefused(ValueError):
    """The board answered, and said no; the text is its own."""


class BoardChipLost(BoardRefused):
    """The chip was lost, or has switched itself off."""


@dataclass(frozen=True, slots=True)
class BoardReply:
    """The board's answer to one step.

    ``slowdown`` (at least 1) is how many times longer the step takes on the simulated chip than its busy time;
    ``memory_limit_bytes`` is what the worker may use, None for no limit; ``fault`` is None, "oom" or "lost".
    """

    slowdown: float
    memory_limit_bytes: int | None
    fault: str | None


class BoardClient:
    """A connection to the board at ``unix:/path``, made when first needed and made anew after a failure.

    Every call raises BoardUnreachable within ``timeout_s`` when the board does not answer, and BoardRefused when it
    does and the request makes no sense.
    """

    def __init__(self, address: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.path = unix_path(address)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._unread = b""

    def post_step(self, chip: int, busy_s: float, tokens: int, held_bytes: int = 0) -> BoardReply:
        """Report a step of ``tokens`` tokens that computed for ``busy_s`` seconds, without sleep or slow-down.

        ``held_bytes`` of the chip's memory are this worker's, for as long as its connection lasts.
        """
        answer = self._call(
            {"op": "post_step", "chip": chip, "busy_s": busy_s, "tokens": tokens, "held_bytes": held_bytes}
        )
        return BoardReply(answer["slowdown"], answer["memory_limit_bytes"], answer["fault"])

    def read(self, chip: int) -> dict[str, Any]:
        """What the chip's sensors say, by the names of ``coldplate.v1.Readings``, and further facts about it."""
        return self._call({"op": "read", "chip": chip})

    def set_level(self, chip: int, level: int) -> None:
        """Set a 310B's work level. Raises BoardRefused where the chip does not take it."""
        self._call({"op": "set_level", "chip": chip, "level": level})

    def describe(self) -> dict[str, Any]:
        """Number of chips, cards, ambient temperature and the pokes the board knows with their values."""
        return self._call({"op": "describe"})

    def poke(self, what: str, chip: int | None = None, **values: float | None) -> None:
        """Do ``what`` (see ``describe()["pokes"]``) to ``chip``, or to every chip when it is None."""
        self._call({"op": "poke", "what": what, "chip": chip, "values": values})

    def close(self) -> None:
        with self._lock:
            self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            try:
                reused = self._socket is not None
                try:
                    answer = self._exchange(line)
                except ConnectionError:
                    if not reused:
                        raise
                    answer = self._exchange(line)  # the board was restarted since the last call
            except (OSError, ValueError) as error:
                self._drop()
                reason = getattr(error, "strerror", None) or str(error)
                if isinstance(error, TimeoutError):
                    reason = f"no answer in {self._timeout_s:g} s"
                raise BoardUnreachable(f"no board at unix:{self.path}: {reason}") from error
        if "error" in answer:
            raise (BoardChipLost if answer.get("lost") else BoardRefused)(answer["error"])
        return answer

    def _exchange(self, line: bytes) -> dict[str, Any]:
        try:
            sock = self._connected()
            sock.sendall(line)
            while b"\n" not in self._unread:
                part = sock.recv(65536)
                if not part:
                    raise ConnectionResetError("the board closed the connection")
                self._unread += part
        except OSError:
            self._drop()
            raise
        answer, _, self._unread = self._unread.partition(b"\n")
        decoded = json.loads(answer)
        if not isinstance(decoded, dict):
            raise ValueError("the answer is not a board's")
        return decoded

    def _connected(self) -> socket.socket:
        if self._socket is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(self._timeout_s)
            try:
                sock.connect(self.path)
            except OSError:
                sock.close()
                raise
            self._socket = sock
        return self._socket

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._unread = None, b""


def unix_path(address: str) -> str:
    """The path in ``unix:/path``. Raises ValueError with the address and the form expected."""
    scheme, _, path = address.partition(":")
    if scheme != "unix" or not path:
        raise ValueError(f"address {address[:200]!r}: expected unix:/path")
    return path
