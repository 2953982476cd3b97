"""When a waiting stream may start, and how many blocks it starts with."""

from collections.abc import Mapping

from coldplate_engine.preemption import MOST_PREEMPTIONS
from coldplate_engine.prefix_cache import PrefixCache
from coldplate_engine.stream import Stream


class Admission:
    """A stream starts when its tokens and the next one fit beside the growth of those that run.

    One that has been preempted starts with more: a third of what it may still come to need for each time, so that after
    ``MOST_PREEMPTIONS`` it has all of it and never again has to give way.
    """

    def __init__(self, prefixes: PrefixCache, running: Mapping[int, Stream]) -> None:
        self._prefixes = prefixes
        self._pool = prefixes.pool
        self._running = running

    def blocks_wanted(self, stream: Stream) -> int:
        """Blocks a stream starts with, those of a cached prefix included."""
        least = self._pool.blocks_for(min(len(stream.tokens) + 1, stream.reserved_tokens))
        rest = self._pool.blocks_for(stream.reserved_tokens) - least
        return least + -(-rest * min(stream.preemptions, MOST_PREEMPTIONS) // MOST_PREEMPTIONS)

    def headroom(self) -> int:
        """Blocks the running streams will soon take: one for each whose last block is half full."""
        size = self._pool.block_size
        return sum(
            len(stream.block_table) * size - len(stream.tokens) < size // 2
            and len(stream.block_table) * size < stream.reserved_tokens
            for stream in self._running.values()
        )

    def start(self, stream: Stream) -> int | None:
        """Give a stream its first blocks; returns its tokens that come from host memory, None when there is no room."""
        count = self.blocks_wanted(stream)
        prefix = self._prefixes.find(stream)
        if count - prefix.held + self.headroom() > self._pool.free:
            return None
        return self._prefixes.take(stream, prefix, count)

    def cut_drafts(self, stream: Stream, budget: int, max_model_len: int) -> None:
        """Keep of a stream's guessed tokens what it may still say and has room for; take the blocks for them."""
        size = self._pool.block_size
        room = min(
            budget,
            stream.submission.max_tokens - stream.generated - 1,
            max_model_len - len(stream.tokens) - 1,
        )
        del stream.drafts[max(0, room) :]
        missing = self._pool.blocks_for(len(stream.tokens) + len(stream.drafts)) - len(stream.block_table)
        if missing <= 0:
            return
        # What the others grow into soon is not taken for a guess.
        affordable = min(missing, max(0, self._pool.free - self.headroom()))
        stream.block_table += self._pool.take(affordable)
        self._prefixes.note_evictions()
        del stream.drafts[max(0, len(stream.block_table) * size - len(stream.tokens)) :]
