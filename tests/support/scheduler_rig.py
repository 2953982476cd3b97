"""A scheduler over a cache of plain lists: every step is checked against what the cache really holds."""

from collections.abc import Iterable

from coldplate_engine.block_pool import BlockPool
from coldplate_engine.messages import Submission
from coldplate_engine.offload import HostCache
from coldplate_engine.scheduler import Scheduler, StepPlan
from coldplate_engine.stream import Stream
from support.engine_loop import submission
from support.fake_runner import next_token


class SchedulerRig:
    """``step`` schedules, checks, computes and commits one step; ``answers`` collects what each stream said."""

    def __init__(
        self,
        num_blocks: int = 32,
        block_size: int = 4,
        seqs: int = 4,
        batched: int = 16,
        context: int = 64,
        host_slots: int = 0,
        prefix_caching: bool = True,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        host = HostCache(host_slots) if host_slots else None
        self.scheduler = Scheduler(self.pool, seqs, batched, context, prefix_caching=prefix_caching, host=host)
        self.answers: dict[int, list[int]] = {}
        self.preempted = self.preempted_tokens = self.cached_tokens = self.offloaded_tokens = 0
        self._device: list[list[int]] = [[-1] * block_size for _ in range(num_blocks)]
        self._host: list[list[int]] = [[] for _ in range(host_slots)]

    def add(self, stream: int, prompt: Iterable[int] | int = 4, max_tokens: int = 4, **options: object) -> Stream:
        ids = range(prompt) if isinstance(prompt, int) else prompt
        return self.submit(submission(stream, ids, max_tokens, **options))

    def submit(self, wanted: Submission) -> Stream:
        made = Stream.start(wanted, self.scheduler.max_model_len, 0.0)
        assert self.scheduler.add(made) is None
        self.answers.setdefault(wanted.stream, list(wanted.emitted_ids))
        return made

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        self.preempted += plan.preempted
        self.preempted_tokens += plan.preempted_tokens
        self.cached_tokens += plan.cached_tokens
        self.offloaded_tokens += plan.offloaded_tokens
        self.check(plan)
        self._compute(plan)
        ended = []
        for piece, stream in zip(plan.batch.slices, plan.streams, strict=True):
            last = len(stream.tokens) - piece.start
            if len(piece.token_ids) >= last and self._accept(stream, piece.token_ids[last:]):
                ended.append(stream)
        self.scheduler.commit(plan)
        for stream in ended:
            self.scheduler.remove(stream.id)
        return plan

    def run(self, most: int = 5000) -> int:
        """Step until nothing is left; returns the number of steps."""
        for steps in range(most):
            if not self.scheduler.live:
                return steps
            assert self.step().streams, "something can always go on"
        raise AssertionError(f"{self.scheduler.live} streams are left after {most} steps")

    def check(self, plan: StepPlan) -> None:
        """What holds of every step, whatever came before it."""
        scheduler, pool, size = self.scheduler, self.pool, self.pool.block_size
        batch = plan.batch
        assert batch.token_count == plan.prefill_tokens + plan.decode_tokens <= scheduler.max_num_batched_tokens
        limit = scheduler.limits.max_prefill_tokens
        assert limit is None or plan.prefill_tokens <= limit
        assert len({piece.stream for piece in batch.slices}) == len(batch.slices)
        decodes = [stream.decoding for stream in plan.streams]
        assert decodes == sorted(decodes, reverse=True), "decodes come first"
        self.check_blocks()
        for piece, stream in zip(batch.slices, plan.streams, strict=True):
            end = piece.start + len(piece.token_ids)
            assert end <= len(piece.block_table) * size, "a block for every token"
            assert piece.start == stream.computed
            assert len(stream.tokens) + len(stream.drafts) < scheduler.max_model_len
            writes = piece.block_table[piece.start // size : -(-end // size)]
            assert all(pool.holders(block) == 1 for block in writes), "nobody writes into what others read"

    def check_blocks(self) -> None:
        """Every block is held as often as streams name it, and otherwise free, exactly once."""
        holders = [0] * self.pool.num_blocks
        for stream in self.scheduler.running.values():
            assert len(stream.block_table) <= self.pool.blocks_for(stream.reserved_tokens)
            for block in stream.block_table:
                holders[block] += 1
        assert holders == [self.pool.holders(block) for block in range(self.pool.num_blocks)]
        assert all(not stream.block_table for stream in self.scheduler.waiting)
        assert self.pool.is_whole()
        assert not self.pool.evicted

    def _compute(self, plan: StepPlan) -> None:
        for slot, block in plan.copies.out.items():
            self._host[slot] = list(self._device[block])
        for block, slot in plan.copies.back.items():
            self._device[block] = list(self._host[slot])
        for piece, stream in zip(plan.batch.slices, plan.streams, strict=True):
            size = self.pool.block_size
            for offset, token in enumerate(piece.token_ids):
                block, at = divmod(piece.start + offset, size)
                self._device[piece.block_table[block]][at] = token
            held = [self._device[piece.block_table[at // size]][at % size] for at in range(piece.start)]
            assert held == stream.tokens[: piece.start], "the cache holds what the stream takes for computed"

    def _accept(self, stream: Stream, drafts: list[int]) -> bool:
        """Take the next token, and one more for each guess that was right; returns whether the stream ended."""
        for guess in [*drafts, None]:
            token = next_token(stream.tokens)
            self.answers[stream.id].append(token)
            if stream.accept(token, self.scheduler.max_model_len)[1] is not None:
                return True
            if token != guess:
                break
        return False
