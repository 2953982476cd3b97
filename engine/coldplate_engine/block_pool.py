"""The free list of KV cache blocks."""


class OutOfBlocks(Exception):
    """More blocks were asked for than are free: the caller must reserve first."""


class BlockPool:
    """``num_blocks`` blocks of ``block_size`` tokens, numbered from 0. Taking and returning one is O(1)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least one block of one token, got {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._held = bytearray(num_blocks)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.num_blocks - len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks ``tokens`` tokens take."""
        return -(-tokens // self.block_size)

    def take(self, count: int) -> list[int]:
        """Take ``count`` blocks, or raise OutOfBlocks and take none."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} of {self.num_blocks} are free")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._held[block] = 1
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """Return blocks. Raises ValueError, and returns none, when one of them is not held."""
        if len(set(blocks)) != len(blocks) or not all(self._held[block] for block in blocks):
            raise ValueError(f"blocks {blocks[:8]} are not all held: returned twice?")
        for block in blocks:
            self._held[block] = 0
        self._free.extend(blocks)

    def is_whole(self) -> bool:
        """Whether every block is either held or free, exactly once. O(blocks): for tests."""
        free = set(self._free)
        return len(free) == len(self._free) and all(bool(self._held[i]) != (i in free) for i in range(self.num_blocks))
