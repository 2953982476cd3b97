"""The board on a Unix socket: one JSON object a line in, one a line out.

    {"op": "post_step", "chip": 0, "busy_s": 0.02, "tokens": 8}
    {"op": "read", "chip": 0}
    {"op": "describe"}
    {"op": "poke", "what": "heat", "chip": 0, "values": {"celsius": 90}}

A request that makes no sense is answered with {"error": "..."} and the connection goes on; a line longer than 64 KiB
ends it. A client that says nothing costs a connection and no more.
"""

import asyncio
import json
import math
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coldplate.clock import Clock
from coldplate_governor.board.board import Board, BoardError, ChipLostError

MAX_LINE_BYTES = 64 * 1024
_TICK_S = 0.25


class AddressTakenError(OSError):
    """The socket cannot be used; the text says why."""


class BoardService:
    """Serves ``board``, whose time runs ``speed`` times as fast as the clock."""

    def __init__(self, board: Board, clock: Clock, speed: float = 1.0) -> None:
        self._board = board
        self._clock = clock
        self._speed = speed
        self._started_s = clock.now()
        self._ops: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "post_step": self._post_step,
            "read": lambda request: board.read(_whole(request, "chip")),
            "describe": lambda request: board.describe(),
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
        try:
            while line := await reader.readline():
                if line.strip():
                    answer = await self._answer(line)
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
        except (ValueError, ConnectionError):
            pass  # an endless line, or a client that went away: the others do not care
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
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
            return op(request)
        except ChipLostError as error:
            return {"error": str(error), "lost": True}
        except BoardError as error:
            return {"error": str(error)}
        except (ValueError, RecursionError):
            return {"error": "expected a JSON object on each line"}

    def _post_step(self, request: dict[str, Any]) -> dict[str, Any]:
        busy_s = request.get("busy_s")
        if isinstance(busy_s, bool) or not isinstance(busy_s, int | float) or not 0 <= busy_s < math.inf:
            raise BoardError(f"busy_s is {str(busy_s)[:40]}: expected seconds, at least 0")
        return self._board.post_step(_whole(request, "chip"), float(busy_s), _whole(request, "tokens"))

    def _poke(self, request: dict[str, Any]) -> dict[str, Any]:
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
