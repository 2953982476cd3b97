"""What the worker and vLLM's engine-core processes tell each other while they run: limits in, scheduler states out.

One page of memory that all of them map. It has no name and no file: an engine core opens it through its worker's entry
in /proc, and the kernel frees it with the last of them. Each record has one writer and carries a checksum, so that a
reader never takes a half-written one.
"""

import mmap
import os
import struct
import zlib
from dataclasses import astuple, dataclass

# How an engine core finds the page, learns the number of cores, and the scheduler class that vLLM has chosen.
BOARD_VARIABLE = "COLDPLATE_VLLM_BOARD"
CORES_VARIABLE = "COLDPLATE_VLLM_CORES"
BASE_VARIABLE = "COLDPLATE_VLLM_SCHEDULER"
MAX_CORES = 16
_RECORD_BYTES = 256
_PAGE_BYTES = (1 + MAX_CORES) * _RECORD_BYTES
_ATTEMPTS = 1000
_NONE = -1


@dataclass(frozen=True, slots=True)
class CoreLimits:
    """What an engine core must keep to; None is no limit. ``duty`` is a share in (0, 1]."""

    seq: int = 0
    duty: float = 1.0
    max_batch: int | None = None
    max_prefill_tokens: int | None = None

    def part(self, index: int, count: int) -> "CoreLimits":
        """The part of core ``index`` of ``count``: counts are shared out, never above the whole."""

        def share(whole: int | None) -> int | None:
            return None if whole is None else whole // count + (index < whole % count)

        return CoreLimits(self.seq, self.duty, share(self.max_batch), share(self.max_prefill_tokens))


@dataclass(frozen=True, slots=True)
class CoreState:
    """A scheduler's own account. Counts from ``steps`` on are totals since its start, times are in seconds.

    ``added`` are requests ever received, ``live`` those not ended; ``waiting_blocks`` is what the waiting ones want to
    start with; ``limits_seq`` is in force from the next step on.
    """

    limits_seq: int = 0
    added: int = 0
    live: int = 0
    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    waiting_blocks: int = 0
    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    preempted: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    schedule_s: float = 0.0
    device_s: float = 0.0
    update_s: float = 0.0
    paced_s: float = 0.0
    idle_s: float = 0.0


_LIMITS = struct.Struct("<Qdqq")
_STATE = struct.Struct("<14Q5d")
_SUM = struct.Struct("<I")


class Board:
    """The page, as seen from one process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._page = mmap.mmap(fd, _PAGE_BYTES)

    @classmethod
    def create(cls) -> "Board":
        """In the worker, which keeps it open for the engine cores to find."""
        fd = os.memfd_create("coldplate-vllm")
        os.ftruncate(fd, _PAGE_BYTES)
        board = cls(fd)
        board.set_limits(CoreLimits())
        return board

    @classmethod
    def attach(cls, address: str) -> "Board":
        """In an engine core. Raises OSError when the worker is gone or on another machine."""
        return cls(os.open(address, os.O_RDWR | os.O_CLOEXEC))

    @property
    def address(self) -> str:
        """What another process of this machine opens; of the process that created it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def set_limits(self, limits: CoreLimits) -> None:
        batch = _NONE if limits.max_batch is None else limits.max_batch
        prefill = _NONE if limits.max_prefill_tokens is None else limits.max_prefill_tokens
        self._write(0, _LIMITS.pack(limits.seq, limits.duty, batch, prefill))

    def limits(self) -> CoreLimits | None:
        """None when none could be read whole."""
        if (data := self._read(0, _LIMITS.size)) is None:
            return None
        seq, duty, batch, prefill = _LIMITS.unpack(data)
        return CoreLimits(seq, duty, None if batch == _NONE else batch, None if prefill == _NONE else prefill)

    def set_state(self, core: int, state: CoreState) -> None:
        self._write(1 + core, _STATE.pack(*astuple(state)))

    def state(self, core: int) -> CoreState | None:
        """None before that core has reported, or when it was never read whole."""
        data = self._read(1 + core, _STATE.size)
        return None if data is None else CoreState(*_STATE.unpack(data))

    def _write(self, record: int, data: bytes) -> None:
        at = record * _RECORD_BYTES
        self._page[at : at + len(data) + _SUM.size] = data + _SUM.pack(zlib.crc32(data))

    def _read(self, record: int, size: int) -> bytes | None:
        at = record * _RECORD_BYTES
        for _ in range(_ATTEMPTS):
            data = self._page[at : at + size + _SUM.size]
            if _SUM.unpack(data[size:])[0] == zlib.crc32(data[:size]):
                return data[:size]
        return None
