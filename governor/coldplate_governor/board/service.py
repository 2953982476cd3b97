"""The board on a Unix socket: one JSON object a line in, one a line out.

    {"op": "post_step", "chip": 0, "busy_s": 0.02, "tokens": 8, "held_bytes": 0}
    {"op": "read", "chip": 0}
    {"op": "set_level", "chip": 0, "level": 1}
    {"op": "describe"}
    {"op": "poke", "what": "heat", "chip": 0, "values": {"celsius": 90}}

A request that makes no sense is answered with {"error": "..."} and the connection goes on; a line longer than 64 KiB
ends it. A client that says nothing costs a connection and no more.
"""

import asyncio
import itertools
import json
import math
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coldplate.clock import Clock
from coldplate_governor.board.board import Board, ChipLostError
from coldplate_governor.board.chip import Holding
from coldplate_governor.board.pokes import BoardError

MAX_LINE_BYTES = 64 * 1024
_TICK_S = 0.25
_Answer = dict[str, Any]


class AddressTakenError(OSError):
    """The socket cannot be used; the text says why."""


class Peer:
    """Who is at the other end of a connection."""

    _numbers = itertools.count(1)

    def __init__(self, sock: socket.socket | None) -> None:
        self.number = next(self._numbers)
        self.pid = _peer_pid(sock)
        self.name = _process_name(self.pid)


class BoardService:
    """Serves ``board``, whose time runs ``speed`` times as fast as the clock."""

    def __init__(self, board: Board, clock: Clock, speed: float = 1.0) -> None:
        self._board = board
        self._clock = clock
        self._speed = speed
        self._started_s = clock.now()
        self._ops: dict[str, Callable[[dict[str, Any], Peer], _Answer]] = {
            "post_step": self._post_step,
            "read": lambda request, peer: board.read(_whole(request, "chip")),
            "set_level": self._set_level,
            "describe": lambda request, peer: board.describe(),
            "poke": self._poke,
        }

    async def serve(self, path: str, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Listen on the Unix socket ``path`` until ``stop`` is set. Raises AddressTakenError."""
        listener = claim_socket(path)
        inode = _inode(path)
        connections: set[asyncio.Task[None]] = set()

        async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await self._client(reader, writer)
            except asyncio.CancelledError:
                pass
            finally:
                connections.discard(task)

        server = await asyncio.start_unix_server(on_client, sock=listener, limit=MAX_LINE_BYTES)
        ready()
        try:
            while not stop.is_set():
                self._board.advance(self._now())
                try:
                    await asyncio.wait_for(stop.wait(), _TICK_S)
                except TimeoutError:
                    continue
        finally:
            server.close()
            for task in list(connections):
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
            if _inode(path) == inode:
                await asyncio.to_thread(Path(path).unlink)

    def _now(self) -> float:
        return (self._clock.now() - self._started_s) * self._speed

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(writer.get_extra_info("socket"))
        try:
            while line := await reader.readline():
                if line.strip():
                    answer = await self._answer(line, peer)
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
        except (ValueError, ConnectionError):
            pass  # an endless line, or a client that went away: the others do not care
        finally:
            self._board.forget(peer.number)
            writer.close()

    async def _answer(self, line: bytes, peer: Peer) -> _Answer:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise BoardError("expected a JSON object on each line")
            op = self._ops.get(str(request.get("op")))
            if op is None:
                raise BoardError(f"unknown op {str(request.get('op'))[:40]!r}: expected one of {', '.join(self._ops)}")
            self._board.advance(self._now())
            if request["op"] == "read":
                await asyncio.sleep(self._board.hangs_for_s(_whole(request, "chip")) / self._speed)
            return op(request, peer)
        except ChipLostError as error:
            return {"error": str(error), "lost": True}
        except BoardError as error:
            return {"error": str(error)}
        except (ValueError, RecursionError):
            return {"error": "expected a JSON object on each line"}

    def _post_step(self, request: dict[str, Any], peer: Peer) -> _Answer:
        busy_s = request.get("busy_s")
        if isinstance(busy_s, bool) or not isinstance(busy_s, int | float) or not 0 <= busy_s < math.inf:
            raise BoardError(f"busy_s is {str(busy_s)[:40]}: expected seconds, at least 0")
        held = request.get("held_bytes", 0)
        if isinstance(held, bool) or not isinstance(held, int) or not 0 <= held < 2**50:
            raise BoardError(f"held_bytes is {str(held)[:40]}: expected a whole number of bytes, at least 0")
        chip, tokens = _whole(request, "chip"), _whole(request, "tokens")
        holding = Holding(peer.pid, peer.name, held) if held else None
        # A second of the worker's is ``speed`` seconds of the board's.
        return self._board.post_step(chip, float(busy_s) * self._speed, tokens, peer.number, holding)

    def _set_level(self, request: dict[str, Any], peer: Peer) -> _Answer:
        self._board.set_level(_whole(request, "chip"), _whole(request, "level"))
        return {}

    def _poke(self, request: dict[str, Any], peer: Peer) -> _Answer:
        chip = None if request.get("chip") is None else _whole(request, "chip")
        values = request.get("values", {})
        if not isinstance(values, dict):
            raise BoardError("values: expected an object")
        self._board.poke(str(request.get("what")), chip, values)
        return {}


def claim_socket(path: str) -> socket.socket:
    """Bind the Unix socket ``path``, taking the place of one that nobody serves. Raises AddressTakenError."""
    place = Path(path)
    if place.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(path)
            except (ConnectionRefusedError, FileNotFoundError):
                place.unlink(missing_ok=True)
            except OSError as error:
                raise AddressTakenError(f"unix:{path}: {error}") from error
            else:
                raise AddressTakenError(f"unix:{path} is taken: another process listens there")
    elif place.exists():
        raise AddressTakenError(f"unix:{path} exists and is no socket: remove it or choose another path")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise AddressTakenError(f"unix:{path}: {error}") from error
    listener.setblocking(False)
    return listener


def _inode(path: str) -> int | None:
    try:
        return Path(path).stat().st_ino
    except FileNotFoundError:
        return None


def _whole(request: dict[str, Any], name: str) -> int:
    value = request.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise BoardError(f"{name} is {str(value)[:40]}: expected a whole number, at least 0")
    return value


def _peer_pid(sock: socket.socket | None) -> int:
    """The process at the other end, 0 where the system does not tell."""
    if sock is None or not hasattr(socket, "SO_PEERCRED"):
        return 0
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown"
