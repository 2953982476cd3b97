"""Prefix blocks in host memory: which are there, and the copies to and from the device that a step begins with."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

_BLOCKS_A_COPY = 64  # bounds what a copy holds at once


@dataclass(slots=True)
class KvCopies:
    """``out`` maps host slots to the device blocks to save there; ``back`` maps device blocks to host slots.

    All of ``out`` comes before any of ``back``, and both before the step's first write.
    """

    out: dict[int, int] = field(default_factory=dict)
    back: dict[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.out or self.back)


class HostCache:
    """The index of ``num_slots`` host blocks by key, the longest unused first to go. Holds no memory itself."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()  # longest unused first
        self._empty = list(range(num_slots - 1, -1, -1))
        self._copies = KvCopies()
        self._about_to_be_read: set[int] = set()

    def __contains__(self, key: bytes) -> bool:
        return key in self._slot_of

    def __len__(self) -> int:
        return len(self._slot_of)

    def save(self, key: bytes, block: int) -> None:
        """Have a device block copied here, unless its content is here already or every slot is about to be read."""
        if key in self._slot_of:
            self._slot_of.move_to_end(key)
        elif (slot := self._room()) is not None:
            self._slot_of[key] = slot
            self._copies.out[slot] = block

    def bring_back(self, key: bytes, block: int) -> None:
        """Have ``key`` copied to a device block; it stays here, too. Raises KeyError when it is not here."""
        self._slot_of.move_to_end(key)
        self._copies.back[block] = self._slot_of[key]
        self._about_to_be_read.add(self._slot_of[key])

    def discard(self, key: bytes) -> None:
        slot = self._slot_of.pop(key, None)
        if slot is not None:
            self._empty.append(slot)

    def take_copies(self) -> KvCopies:
        """The copies asked for since the last call."""
        copies, self._copies = self._copies, KvCopies()
        self._about_to_be_read.clear()
        return copies

    def _room(self) -> int | None:
        if self._empty:
            return self._empty.pop()
        oldest = next((key for key, slot in self._slot_of.items() if slot not in self._about_to_be_read), None)
        return None if oldest is None else self._slot_of.pop(oldest)


class KvStore(Protocol):
    """Reads and writes whole blocks over all layers; a ``ModelRunner`` is one."""

    def read_blocks(self, blocks: list[int]) -> "Tensor":
        """uint8 ``[blocks, bytes of one]``, on the device or in host memory."""
        ...

    def write_blocks(self, blocks: list[int], data: "Tensor") -> None:
        """The reverse; ``data`` may be in host memory."""
        ...


class HostBlocks:
    """The host memory itself: ``num_slots`` blocks of ``block_bytes``, pinned where the device is not the CPU."""

    def __init__(self, store: KvStore, num_slots: int, block_bytes: int, pinned: bool) -> None:
        import torch

        self._store = store
        self._slots = torch.empty(num_slots, block_bytes, dtype=torch.uint8, pin_memory=pinned)

    def run(self, copies: KvCopies) -> None:
        """Make the copies. Raises the device's own errors."""
        for slots, blocks in _parts(list(copies.out), list(copies.out.values())):
            self._slots[slots] = self._store.read_blocks(blocks).to(self._slots.device)
        for blocks, slots in _parts(list(copies.back), list(copies.back.values())):
            self._store.write_blocks(blocks, self._slots[slots])


def _parts(first: list[int], second: list[int]) -> list[tuple[list[int], list[int]]]:
    steps = range(0, len(first), _BLOCKS_A_COPY)
    return [(first[at : at + _BLOCKS_A_COPY], second[at : at + _BLOCKS_A_COPY]) for at in steps]
