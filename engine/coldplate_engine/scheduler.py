"""Continuous batching: which streams run, and which of their tokens go into the next step."""

from bisect import insort
from dataclasses import dataclass, field

from coldplate.limits import NO_LIMITS, Limits
from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.block_pool import BlockPool
from coldplate_engine.messages import Credit, EngineError, Finished, StopCause
from coldplate_engine.stream import Stream


@dataclass(slots=True)
class StepPlan:
    """``streams[i]`` is the stream of ``batch.slices[i]``; decodes come first."""

    batch: StepBatch = field(default_factory=StepBatch)
    streams: list[Stream] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    prefill_tokens: int = 0
    decode_tokens: int = 0


class Scheduler:
    """Decodes first, one token each; then prefill chunks by admission; then new streams by priority and arrival.

    A stream is admitted only when all blocks it can ever need are free, so nothing that runs can run out. A step
    holds at most ``max_num_batched_tokens`` tokens. Limits act on the next ``schedule``; ``max_batch``
    keeps new streams out and never stops a running one.
    """

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {max_num_batched_tokens} is below max_num_seqs {max_num_seqs}: "
                "every running stream needs room for one token a step"
            )
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.limits: Limits = NO_LIMITS
        self.running: dict[int, Stream] = {}
        self._waiting: list[tuple[int, int, Stream]] = []  # (-priority, arrival, stream), in order
        self._arrivals = 0

    @property
    def waiting(self) -> list[Stream]:
        return [stream for _, _, stream in self._waiting]

    @property
    def live(self) -> int:
        """Streams in hand, running or waiting."""
        return len(self.running) + len(self._waiting)

    def has(self, stream_id: int) -> bool:
        return stream_id in self.running or any(stream.id == stream_id for _, _, stream in self._waiting)

    def add(self, stream: Stream) -> Finished | None:
        """Queue a stream; returns its end at once when it can never fit or is complete already."""
        if (ended := stream.end_by_length(self.max_model_len)) is not None:
            return ended
        needed = self.pool.blocks_for(stream.reserved_tokens)
        if needed > self.pool.num_blocks:
            capacity = self.pool.num_blocks * self.pool.block_size
            return Finished(
                stream.id,
                StopCause.ERROR,
                error=EngineError.UNSATISFIABLE,
                error_text=f"prompt and max_tokens need {stream.reserved_tokens} tokens of a KV cache of {capacity}",
            )
        insort(self._waiting, (-stream.submission.priority, self._arrivals, stream))
        self._arrivals += 1
        return None

    def remove(self, stream_id: int) -> Stream | None:
        """Take a stream out, in whatever state, and free its blocks. None when it is not here."""
        stream = self.running.pop(stream_id, None)
        if stream is not None:
            self.pool.give_back(stream.block_table)
            stream.block_table = []
            return stream
        for at, (_, _, waiting) in enumerate(self._waiting):
            if waiting.id == stream_id:
                del self._waiting[at]
                return waiting
        return None

    def remove_all(self) -> list[Stream]:
        streams = [*self.running.values(), *self.waiting]
        for stream in streams:
            self.remove(stream.id)
        return streams

    def expired(self, now: float) -> list[int]:
        """Streams whose deadline has passed."""
        streams = (*self.running.values(), *(stream for _, _, stream in self._waiting))
        return [stream.id for stream in streams if stream.deadline is not None and now >= stream.deadline]

    def schedule(self) -> StepPlan:
        """The next step; empty when nothing may run now. ``commit`` it once it has run."""
        plan = StepPlan()
        for stream in self.running.values():
            if stream.decoding:
                self._put(plan, stream, 1)
        plan.decode_tokens = len(plan.streams)
        budget = self.max_num_batched_tokens - plan.decode_tokens
        if self.limits.max_prefill_tokens is not None:
            budget = min(budget, self.limits.max_prefill_tokens)
        for stream in self.running.values():
            if not stream.decoding and budget > 0:
                budget -= self._prefill(plan, stream, budget)
        while budget > 0 and (admitted := self._admit()) is not None:
            plan.admitted.append(admitted.id)
            budget -= self._prefill(plan, admitted, budget)
        return plan

    def commit(self, plan: StepPlan) -> None:
        """The tokens of ``plan`` are in the cache now."""
        for piece, stream in zip(plan.batch.slices, plan.streams, strict=True):
            stream.computed = piece.start + len(piece.token_ids)

    def credit(self, submits_seen: int, draining: bool) -> Credit:
        slots = 0 if draining else max(0, self._slots() - self.live)
        promised = sum(self.pool.blocks_for(stream.reserved_tokens) for _, _, stream in self._waiting)
        return Credit(submits_seen, slots, max(0, self.pool.free - promised) * self.pool.block_size)

    def _slots(self) -> int:
        cap = self.limits.max_batch
        return self.max_num_seqs if cap is None else min(cap, self.max_num_seqs)

    def _admit(self) -> Stream | None:
        if not self._waiting or len(self.running) >= self._slots():
            return None
        stream = self._waiting[0][2]
        needed = self.pool.blocks_for(stream.reserved_tokens)
        if needed > self.pool.free:
            return None
        del self._waiting[0]
        stream.block_table = self.pool.take(needed)
        self.running[stream.id] = stream
        return stream

    def _prefill(self, plan: StepPlan, stream: Stream, budget: int) -> int:
        count = min(budget, len(stream.tokens) - stream.computed)
        self._put(plan, stream, count)
        plan.prefill_tokens += count
        return count

    @staticmethod
    def _put(plan: StepPlan, stream: Stream, count: int) -> None:
        start, end = stream.computed, stream.computed + count
        plan.batch.slices.append(
            StreamSlice(
                stream=stream.id,
                token_ids=stream.tokens[start:end],
                start=start,
                block_table=stream.block_table,
                logit_tokens=int(end == len(stream.tokens)),
            )
        )
        plan.streams.append(stream)
