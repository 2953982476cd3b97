"""Prefixes already computed: which blocks of a stream's tokens are in the pool, or in host memory.

A full block is known by a 256-bit BLAKE2b over the key of the block before it and its own token ids; before the first
block stands the caller's salt. Equal keys are taken for equal tokens: a false hit would need a collision of that hash.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from coldplate_engine.block_pool import BlockPool
from coldplate_engine.offload import HostCache
from coldplate_engine.stream import Stream

_KEY_BYTES = 32


def root_key(salt: str) -> bytes:
    """What stands before the first block of every prompt with this salt."""
    return blake2b(salt.encode(errors="surrogatepass"), digest_size=_KEY_BYTES).digest()


def block_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of a full block that follows the block with key ``parent``."""
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=_KEY_BYTES).digest()


@dataclass(slots=True)
class Prefix:
    """The blocks a stream need not compute, first to last: a block of the pool, or None for one in host memory."""

    blocks: list[int | None] = field(default_factory=list)
    held: int = 0  # of them, blocks that other streams hold: taking those costs no free block


class PrefixCache:
    """Finds, takes and keeps prefixes. ``enabled`` False finds and keeps nothing."""

    def __init__(self, pool: BlockPool, enabled: bool = True, host: HostCache | None = None) -> None:
        self.pool = pool
        self.enabled = enabled
        self.host = host

    def find(self, stream: Stream) -> Prefix:
        """The longest prefix there is, without the last token: that is computed in any case."""
        prefix = Prefix()
        if not self.enabled or stream.submission.prompt_logprobs is not None:
            return prefix
        for key in self._keys(stream, (len(stream.tokens) - 1) // self.pool.block_size):
            block = self.pool.find(key)
            if block is None and (self.host is None or key not in self.host):
                break
            prefix.blocks.append(block)
            prefix.held += block is not None and self.pool.holders(block) > 0
        return prefix

    def take(self, stream: Stream, prefix: Prefix, count: int) -> int:
        """Give a stream ``count`` blocks that begin with ``prefix``; returns the tokens that come from host memory.

        There must be room for ``count - prefix.held`` blocks.
        """
        for block in prefix.blocks:
            if block is not None:
                self.pool.share(block)
        fresh = iter(self.pool.take(count - sum(block is not None for block in prefix.blocks)))
        table: list[int] = []
        restored = 0
        for index, block in enumerate(prefix.blocks):
            if block is None:
                block = next(fresh)
                assert self.host is not None
                self.host.bring_back(stream.block_keys[index], block)
                self.pool.keep(block, stream.block_keys[index])
                restored += 1
            table.append(block)
        self.note_evictions()  # only now, or what is to come back might have to make room
        stream.block_table = [*table, *fresh]
        stream.computed = len(table) * self.pool.block_size
        stream.blocks_kept = len(table)
        return restored * self.pool.block_size

    def keep(self, stream: Stream) -> None:
        """Let the stream's full computed blocks be found."""
        full = stream.computed // self.pool.block_size
        if not self.enabled or full <= stream.blocks_kept:
            return
        keys = self._keys(stream, full)
        for index in range(stream.blocks_kept, full):
            self.pool.keep(stream.block_table[index], keys[index])
        stream.blocks_kept = full

    def note_evictions(self) -> None:
        """Have what the pool evicted copied to host memory before the next step overwrites it."""
        if self.host is not None:
            for block, key in self.pool.evicted:
                self.host.save(key, block)
        self.pool.evicted.clear()

    def forget(self, stream: Stream) -> None:
        """Let nobody find this stream's blocks: what is in them may be wrong."""
        self.pool.forget(stream.block_table)
        if self.host is not None:
            for key in stream.block_keys:
                self.host.discard(key)

    def drop_host(self) -> None:
        """Do without host memory from now on."""
        self.host = None

    def _keys(self, stream: Stream, count: int) -> list[bytes]:
        """The keys of the first ``count`` blocks; they are worked out once, since tokens never change."""
        keys, size = stream.block_keys, self.pool.block_size
        parent = keys[-1] if keys else root_key(stream.submission.cache_salt)
        for index in range(len(keys), count):
            parent = block_key(parent, stream.tokens[index * size : (index + 1) * size])
            keys.append(parent)
        return keys[:count] if len(keys) > count else keys
