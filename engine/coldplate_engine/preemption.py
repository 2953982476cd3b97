"""Who makes room when the cache is full: the stream that came last in the lowest class, a bounded number of times."""

from collections.abc import Callable, Mapping, Sequence

from coldplate_engine.prefix_cache import PrefixCache
from coldplate_engine.stream import Stream

MOST_PREEMPTIONS = 3  # of one stream; then it starts with all the blocks it can need


class Preemption:
    """Grows running streams block by block; ``put_back`` lets a running stream wait again and frees its blocks.

    Only a later or lower stream gives way, and none that has given way ``MOST_PREEMPTIONS`` times. Who finds nobody to
    give way stands still with its blocks. So the first in rank always goes on: either it gets its block, or all others
    have all they need and come to their end.
    """

    def __init__(
        self, prefixes: PrefixCache, running: Mapping[int, Stream], put_back: Callable[[Stream], None]
    ) -> None:
        self._prefixes = prefixes
        self._pool = prefixes.pool
        self._running = running
        self._put_back = put_back

    def has_room(self, stream: Stream) -> bool:
        """Whether a running stream has a block for its next token."""
        return len(stream.tokens) <= len(stream.block_table) * self._pool.block_size

    def grow(self, decodes: Sequence[Stream]) -> list[int]:
        """Give each stream that needs one its next block; returns the tokens each stream lost that gave way."""
        short = [stream for stream in decodes if not self.has_room(stream)]
        lost: list[int] = []
        if len(short) > self._pool.free:
            short.sort(key=lambda stream: stream.rank)
        for stream in short:
            while stream.block_table and not self._pool.free and (victim := self._victim(stream)) is not None:
                lost.append(victim.computed)
                victim.preemptions += 1
                self._put_back(victim)
            if stream.block_table and self._pool.free:
                stream.block_table += self._pool.take(1)
        self._prefixes.note_evictions()
        return lost

    def _victim(self, stream: Stream) -> Stream | None:
        """Who gives way to ``stream``: the last in rank behind it."""
        last = max(
            (other for other in self._running.values() if other.preemptions < MOST_PREEMPTIONS),
            key=lambda other: other.rank,
            default=None,
        )
        return last if last is not None and last.rank > stream.rank else None
