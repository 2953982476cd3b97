"""Continuous batching: which streams run, and which of their tokens go into the next step."""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from coldplate.limits import NO_LIMITS, Limits
from coldplate_engine.admission import Admission
from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.block_pool import BlockPool
from coldplate_engine.messages import Admitted, Credit, EngineError, Finished, StopCause
from coldplate_engine.offload import HostCache, KvCopies
from coldplate_engine.preemption import Preemption
from coldplate_engine.prefix_cache import PrefixCache
from coldplate_engine.stream import Stream

_FAIR_PROMPTS = 4  # so many prompts are computed side by side; more would only all be late
_SMALLEST_SHARE = 16  # tokens; smaller chunks cost more than they bring


@dataclass(slots=True)
class StepPlan:
    """``streams[i]`` is the stream of ``batch.slices[i]``; decodes come first.

    ``admitted`` are new streams, ``started`` also those that were preempted before. ``copies`` go ahead of the step.
    ``decode_tokens`` counts the ``draft_tokens`` in it, ``cached_tokens`` the ``offloaded_tokens``.
    """

    batch: StepBatch = field(default_factory=StepBatch)
    streams: list[Stream] = field(default_factory=list)
    admitted: list[Admitted] = field(default_factory=list)
    started: list[Stream] = field(default_factory=list)
    copies: KvCopies = field(default_factory=KvCopies)
    prefill_tokens: int = 0
    decode_tokens: int = 0
    draft_tokens: int = 0
    preempted: int = 0
    preempted_tokens: int = 0
    cached_tokens: int = 0
    offloaded_tokens: int = 0


class Scheduler:
    """Decodes first, one token each and what was guessed behind it; then chunks of prompts; new streams by priority and
    arrival.

    A step holds at most ``max_num_batched_tokens`` tokens. Limits act on the next ``schedule``; ``max_batch`` keeps new
    streams out and never stops a running one. ``admission`` says when a stream may start, ``preemption`` who makes
    room when the cache is full.
    """

    def __init__(
        self,
        pool: BlockPool,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        *,
        prefix_caching: bool = True,
        host: HostCache | None = None,
    ) -> None:
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
        self.waiting: list[Stream] = []  # by rank
        self.prefixes = PrefixCache(pool, prefix_caching, host)
        self._admission = Admission(self.prefixes, self.running)
        self._preemption = Preemption(self.prefixes, self.running, self._put_back)
        self._streams: dict[int, Stream] = {}
        self._arrivals = 0

    @property
    def live(self) -> int:
        """Streams in hand, running or waiting."""
        return len(self._streams)

    def has(self, stream_id: int) -> bool:
        return stream_id in self._streams

    def add(self, stream: Stream) -> Finished | None:
        """Queue a stream; returns its end at once when it can never fit or is complete already."""
        if (ended := stream.end_by_length(self.max_model_len)) is not None:
            return ended
        if self.pool.blocks_for(stream.reserved_tokens) > self.pool.num_blocks:
            capacity = self.pool.num_blocks * self.pool.block_size
            return Finished(
                stream.id,
                StopCause.ERROR,
                error=EngineError.UNSATISFIABLE,
                error_text=f"prompt and max_tokens need {stream.reserved_tokens} tokens of a KV cache of {capacity}",
            )
        stream.rank = (-stream.submission.priority, self._arrivals)
        self._arrivals += 1
        self._streams[stream.id] = stream
        insort(self.waiting, stream, key=_rank)
        return None

    def remove(self, stream_id: int, *, forget: bool = False) -> Stream | None:
        """Take a stream out, in whatever state, and free its blocks; ``forget``: nobody may use what is in them.

        None when it is not here.
        """
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return None
        if self.running.pop(stream_id, None) is None:
            self.waiting.remove(stream)
            return stream
        if forget:
            self.prefixes.forget(stream)
        self.pool.give_back(stream.block_table)
        stream.block_table = []
        return stream

    def remove_all(self) -> list[Stream]:
        streams = [*self.running.values(), *self.waiting]
        for stream in streams:
            self.remove(stream.id)
        return streams

    def expired(self, now: float) -> list[int]:
        """Streams whose deadline has passed."""
        return [
            stream.id for stream in self._streams.values() if stream.deadline is not None and now >= stream.deadline
        ]

    def schedule(self) -> StepPlan:
        """The next step; empty when nothing may run now. ``commit`` it once it has run."""
        plan = StepPlan()
        self._decode(plan)
        budget = self.max_num_batched_tokens - plan.decode_tokens
        if self.limits.max_prefill_tokens is not None:
            budget = min(budget, self.limits.max_prefill_tokens)
        if budget > 0:
            self._prefill(plan, budget)
        if plan.streams and self.prefixes.host is not None:
            plan.copies = self.prefixes.host.take_copies()
        return plan

    def commit(self, plan: StepPlan) -> None:
        """The tokens of ``plan`` are in the cache now.

        Comes after the streams have accepted their new tokens and before any is removed: of guessed tokens only those
        that became part of the stream count.
        """
        for piece, stream in zip(plan.batch.slices, plan.streams, strict=True):
            stream.computed = min(piece.start + len(piece.token_ids), len(stream.tokens) - 1)
            stream.drafts = []
            self.prefixes.keep(stream)

    def undo(self, plan: StepPlan) -> None:
        """The copies of ``plan`` failed and nothing of it ran: its new streams wait again, host memory is given up."""
        self.prefixes.drop_host()
        for stream in plan.started:
            stream.admitted = False
            self.prefixes.forget(stream)
            self._put_back(stream)

    def credit(self, submits_seen: int, draining: bool) -> Credit:
        """What may be submitted now: prompts of so many tokens, in whole blocks with one token of answer, can start."""
        slots = 0 if draining else max(0, self._slots() - self.live)
        promised = sum(self._admission.blocks_wanted(stream) for stream in self.waiting)
        blocks = max(0, self.pool.free - self._admission.headroom() - promised)
        return Credit(submits_seen, slots, blocks * self.pool.block_size)

    def _slots(self) -> int:
        cap = self.limits.max_batch
        return self.max_num_seqs if cap is None else min(cap, self.max_num_seqs)

    def _decode(self, plan: StepPlan) -> None:
        decodes = [stream for stream in self.running.values() if stream.decoding]
        lost = self._preemption.grow(decodes)
        plan.preempted, plan.preempted_tokens = len(lost), sum(lost)
        ready = [stream for stream in decodes if self._preemption.has_room(stream)]
        spare = self.max_num_batched_tokens - len(ready)
        for stream in ready:
            if stream.drafts:
                self._admission.cut_drafts(stream, spare, self.max_model_len)
                spare -= len(stream.drafts)
                plan.draft_tokens += len(stream.drafts)
            self._put(plan, stream, 1)
        plan.decode_tokens = len(ready) + plan.draft_tokens

    def _prefill(self, plan: StepPlan, budget: int) -> None:
        prompts = [stream for stream in self.running.values() if not stream.decoding]
        left = [len(stream.tokens) - stream.computed for stream in prompts]
        side_by_side = min(_FAIR_PROMPTS, max(1, budget // _SMALLEST_SHARE))
        while (sum(left) < budget or len(prompts) < side_by_side) and (stream := self._admit(plan)) is not None:
            prompts.append(stream)
            left.append(len(stream.tokens) - stream.computed)
        for stream, count in zip(prompts, fair_shares(left, budget), strict=True):
            if count:
                self._put(plan, stream, count)
                plan.prefill_tokens += count

    def _admit(self, plan: StepPlan) -> Stream | None:
        if len(self.running) >= self._slots():
            return None
        stream = next((s for s in self.waiting if s.ready and not self._waits_for_sibling(s)), None)
        if stream is None or (cached := self._admission.start(stream)) is None:
            return None
        self.waiting.remove(stream)
        self.running[stream.id] = stream
        plan.started.append(stream)
        plan.cached_tokens += stream.computed
        plan.offloaded_tokens += cached
        if not stream.admitted:
            stream.admitted = True
            plan.admitted.append(Admitted(stream.id, min(stream.computed, len(stream.submission.prompt_ids))))
        return stream

    def _waits_for_sibling(self, stream: Stream) -> bool:
        """Whether an earlier stream is about to compute this one's prompt."""
        if stream.submission.sibling_of == 0 or not self.prefixes.enabled:
            return False
        first = self._streams.get(stream.submission.sibling_of)
        if first is None or first.rank[1] >= stream.rank[1]:
            return False
        if first.id in self.running:
            return first.computed < len(first.submission.prompt_ids) - 1
        return first.preemptions == 0

    def _put_back(self, stream: Stream) -> None:
        """Let a running stream wait again, before all that came later, and compute its tokens anew."""
        del self.running[stream.id]
        self.pool.give_back(stream.block_table)
        stream.restart()
        insort(self.waiting, stream, key=_rank)

    @staticmethod
    def _put(plan: StepPlan, stream: Stream, count: int) -> None:
        start, end = stream.computed, stream.computed + count
        plan.batch.slices.append(
            StreamSlice(
                stream=stream.id,
                token_ids=[*stream.tokens[start:end], *stream.drafts],
                start=start,
                block_table=stream.block_table,
                logit_tokens=stream.logit_tokens(start, end) + len(stream.drafts),
            )
        )
        plan.streams.append(stream)


def fair_shares(left: Iterable[int], budget: int) -> list[int]:
    """Divide ``budget`` tokens among prompts with ``left`` tokens each: equal parts, what one does not need to others.

    No part is smaller than a useful one, so that the last in line may get none.
    """
    wanted = list(left)
    shares = [0] * len(wanted)
    remaining = len(wanted)
    for index in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        shares[index] = min(wanted[index], budget, max(_SMALLEST_SHARE, budget // remaining))
        budget -= shares[index]
        remaining -= 1
    return shares


def _rank(stream: Stream) -> tuple[int, int]:
    return stream.rank
