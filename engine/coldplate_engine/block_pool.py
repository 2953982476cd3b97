"""KV cache blocks: who holds them, which of them keep a reusable prefix, and which go first when room is needed."""

from collections import OrderedDict
from collections.abc import Sequence


class OutOfBlocks(Exception):
    """More blocks were asked for than are free: the caller must look first."""


class BlockPool:
    """``num_blocks`` blocks of ``block_size`` tokens, numbered from 0; every operation is O(1) a block.

    A block is held (by one or more streams), cached (held by nobody, but found under its key) or empty. Cached and
    empty blocks are ``free``. ``take`` uses empty blocks first, then the cached one that was let go longest ago;
    ``evicted`` collects (block, key) of those until the caller clears it.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least one block of one token, got {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.evicted: list[tuple[int, bytes]] = []
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # let go longest ago first
        self._holders = [0] * num_blocks
        self._key_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        return len(self._empty) + len(self._cached)

    @property
    def used(self) -> int:
        """Blocks some stream holds."""
        return self.num_blocks - self.free

    @property
    def cached(self) -> int:
        """Blocks that keep a prefix and that no stream holds."""
        return len(self._cached)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks ``tokens`` tokens take."""
        return -(-tokens // self.block_size)

    def take(self, count: int) -> list[int]:
        """Take ``count`` blocks, or raise OutOfBlocks and take none."""
        if count > self.free:
            raise OutOfBlocks(f"{count} blocks wanted, {self.free} of {self.num_blocks} are free")
        return [self._take_one() for _ in range(count)]

    def share(self, block: int) -> None:
        """Hold a block that is held or cached. Raises ValueError for an empty one."""
        if self._holders[block] == 0:
            if block not in self._cached:
                raise ValueError(f"block {block} holds nothing to share")
            del self._cached[block]
        self._holders[block] += 1

    def give_back(self, blocks: Sequence[int]) -> None:
        """Let go of a stream's blocks, the last first. Raises ValueError, and lets go of none, when one is not held."""
        if len(set(blocks)) != len(blocks) or not all(self._holders[block] for block in blocks):
            raise ValueError(f"blocks {blocks[:8]} are not all held: returned twice?")
        for block in reversed(blocks):  # a prefix is of use without what follows it, not the other way round
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if self._key_of[block] is None:
                    self._empty.append(block)
                else:
                    self._cached[block] = None

    def holders(self, block: int) -> int:
        """How many streams hold a block."""
        return self._holders[block]

    def find(self, key: bytes) -> int | None:
        """The block kept under ``key``, held or cached."""
        return self._block_of.get(key)

    def keep(self, block: int, key: bytes) -> None:
        """Let a held, full block be found under ``key``; where another block is already, that one stays."""
        if key not in self._block_of and self._key_of[block] is None:
            self._block_of[key] = block
            self._key_of[block] = key

    def forget(self, blocks: Sequence[int]) -> None:
        """Let nobody find these held blocks any more."""
        for block in blocks:
            key = self._key_of[block]
            if key is not None:
                del self._block_of[key]
                self._key_of[block] = None

    def clear_cached(self) -> None:
        """Empty every block that nobody holds."""
        while self._cached:
            self._empty.append(self._evict())

    def is_whole(self) -> bool:
        """Whether every block is held, cached or empty, exactly once, and found under its key. O(blocks): for tests."""
        empty, cached = set(self._empty), set(self._cached)
        held = {block for block in range(self.num_blocks) if self._holders[block] > 0}
        return (
            len(empty) == len(self._empty)
            and len(empty) + len(cached) + len(held) == self.num_blocks == len(empty | cached | held)
            and all(self._key_of[block] is None for block in empty)
            and all(self._key_of[block] is not None for block in cached)
            and {block: key for block, key in enumerate(self._key_of) if key is not None}
            == {block: key for key, block in self._block_of.items()}
        )

    def _take_one(self) -> int:
        if self._empty:
            block = self._empty.pop()
        else:
            key = self._key_of[next(iter(self._cached))]
            block = self._evict()
            assert key is not None
            self.evicted.append((block, key))
        self._holders[block] = 1
        return block

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        key = self._key_of[block]
        assert key is not None
        del self._block_of[key]
        self._key_of[block] = None
        return block
