"""What may still be submitted to a worker: its last word, less what it had not seen when it spoke.

A worker promises room for what a stream begins with: its prompt, what it has emitted elsewhere, and one token. How
streams then share the cache as they grow is the worker's affair, so that the only queue is the server's.
"""

from collections import OrderedDict


class Credit:
    """Free slots and free KV tokens of one worker connection."""

    def __init__(self, block_size: int, free_slots: int, free_kv_tokens: int) -> None:
        self._block_size = block_size
        self._submits = 0
        self._in_flight: OrderedDict[int, int] = OrderedDict()  # submit number -> KV tokens
        self._in_flight_kv = 0
        self._slots = free_slots
        self._kv_tokens = free_kv_tokens

    def needed(self, kv_tokens: int) -> int:
        """KV tokens a stream begins with, in whole blocks."""
        return -(-kv_tokens // self._block_size) * self._block_size

    @property
    def free_slots(self) -> int:
        return max(0, self._slots - len(self._in_flight))

    @property
    def free_kv_tokens(self) -> int:
        return max(0, self._kv_tokens - self._in_flight_kv)

    def covers(self, kv_tokens: int) -> bool:
        """Whether a stream that begins with ``kv_tokens`` can be submitted now."""
        return self.free_slots > 0 and self.needed(kv_tokens) <= self.free_kv_tokens

    def spend(self, kv_tokens: int) -> None:
        """Count a submit that is on its way."""
        self._submits += 1
        self._in_flight[self._submits] = self.needed(kv_tokens)
        self._in_flight_kv += self.needed(kv_tokens)

    def update(self, submits_seen: int, free_slots: int, free_kv_tokens: int) -> None:
        """Take the worker's word, which knows of the first ``submits_seen`` submits."""
        self._slots, self._kv_tokens = free_slots, free_kv_tokens
        while self._in_flight and next(iter(self._in_flight)) <= submits_seen:
            self._in_flight_kv -= self._in_flight.popitem(last=False)[1]
