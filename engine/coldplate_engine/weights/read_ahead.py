"""Reading tensors of checkpoint files with several threads, ahead of whoever asks for them.

A tensor is read into the memory it will live in: a mapped file would be read page by page, by faults of the thread
that computes, and would fault again when the file is replaced under a running worker.
"""

import os
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from coldplate_engine.runner import ModelError
from coldplate_engine.weights.stored import StoredTensor

THREADS = 4
PIECE_BYTES = 8 << 20
_AHEAD_BYTES = 256 << 20  # read but not asked for yet; what the memory may hold beside the model


@dataclass(slots=True)
class ReadClock:
    """``seconds`` with at least one read under way, ``bytes`` read, ``waited_s`` of the thread that asked."""

    seconds: float = 0.0
    bytes: int = 0
    waited_s: float = 0.0

    @property
    def mb_per_s(self) -> float:
        return self.bytes / 1e6 / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Pending:
    data: Tensor
    pieces: list[Future[None]]


class ReadAhead:
    """``take`` gives a tensor's bytes; those likely to be asked for next are read meanwhile.

    The likely order is that of the names, numbers by value, the output head last. Raises ``ModelError``.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor], ahead_bytes: int = _AHEAD_BYTES) -> None:
        self.clock = ReadClock()
        self._tensors = tensors
        self._order = sorted(tensors, key=likely_order)
        self._place = {name: at for at, name in enumerate(self._order)}
        self._ahead_bytes = ahead_bytes
        self._cursor = 0
        self._seen: set[str] = set()  # taken, or read ahead once
        self._pending: dict[str, _Pending] = {}
        self._pool = ThreadPoolExecutor(THREADS, "read-weights")
        self._files: dict[Path, int] = {}
        self._lock = Lock()
        self._under_way = 0
        self._since = 0.0

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._pending.clear()
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def take(self, name: str) -> Tensor:
        """uint8 ``[nbytes]``, the caller's own."""
        if name not in self._pending:
            self._make_room()
            self._cursor = self._place[name] + 1
            self._start(name)
        pending = self._pending.pop(name)
        self._read_on()
        began = time.perf_counter()
        for piece in pending.pieces:
            piece.result()
        self.clock.waited_s += time.perf_counter() - began
        return pending.data

    def _make_room(self) -> None:
        """Let go of the oldest that nobody asked for. Asked for later, they are read again."""
        while self._pending and self._held() >= self._ahead_bytes:
            del self._pending[next(iter(self._pending))]

    def _read_on(self) -> None:
        while self._held() < self._ahead_bytes:
            if self._cursor == len(self._order):
                return
            name = self._order[self._cursor]
            self._cursor += 1
            if name not in self._seen:
                self._start(name)

    def _held(self) -> int:
        return sum(pending.data.nbytes for pending in self._pending.values())

    def _start(self, name: str) -> None:
        stored = self._tensors[name]
        data = torch.empty(stored.nbytes, dtype=torch.uint8)
        into = memoryview(data.numpy().data)
        file = self._file(stored.file)
        self._seen.add(name)
        self._pending[name] = _Pending(
            data,
            [
                self._pool.submit(self._read, stored, name, file, at, into[at : at + PIECE_BYTES])
                for at in range(0, stored.nbytes, PIECE_BYTES)
            ],
        )

    def _file(self, path: Path) -> int:
        if path not in self._files:
            try:
                self._files[path] = os.open(path, os.O_RDONLY)
            except OSError as error:
                raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
        return self._files[path]

    def _read(self, stored: StoredTensor, name: str, file: int, at: int, into: memoryview) -> None:
        with self._lock:
            if not self._under_way:
                self._since = time.perf_counter()
            self._under_way += 1
        done = 0
        try:
            while done < len(into):
                count = os.preadv(file, [into[done:]], stored.offset + at + done)
                if count == 0:
                    raise ModelError(f"{stored.file}: was cut while being read: tensor {name} is incomplete")
                done += count
        except OSError as error:
            raise ModelError(f"{stored.file}: cannot be read: {error.strerror}") from None
        finally:
            with self._lock:
                self._under_way -= 1
                self.clock.bytes += done
                if not self._under_way:
                    self.clock.seconds += time.perf_counter() - self._since


def likely_order(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """Sorts names as models ask for them, roughly."""
    parts = re.split(r"(\d+)", name)
    return name.startswith("lm_head"), [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
