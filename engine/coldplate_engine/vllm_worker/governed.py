"""Limits inside vLLM's scheduler: mixed into whichever class vLLM has chosen, in the engine-core process."""

import os
from collections.abc import Iterable
from typing import Any

from coldplate_engine.vllm_worker.board import BOARD_VARIABLE, CORES_VARIABLE, Board, CoreLimits, CoreState
from coldplate_engine.vllm_worker.faults import CoreFaults
from coldplate_engine.vllm_worker.pace import CorePace

_MOST_HELD_BACK = 0.25  # of the KV cache
NON_FINITE = "non_finite_logits"  # the stop reason of a request whose logits held NaN
_STALL_NAP_S = 0.01


class Governed:
    """Each step under the limits on the board, each step's state back onto it.

    A batch cap stops admission and preempts nothing; ``max_prefill_tokens`` is on top of what running ones decode.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        parallel = self.vllm_config.parallel_config
        self._core = int(getattr(parallel, "data_parallel_index", 0) or 0)
        self._cores = int(os.environ.get(CORES_VARIABLE, "1"))
        self._board = Board.attach(os.environ[BOARD_VARIABLE])
        # Newer versions keep admission apart from the runner's slots, which must not be fewer than the running ones.
        self._admission = "max_num_active_reqs" if hasattr(self, "max_num_active_reqs") else "max_num_running_reqs"
        self._own_admission: int = getattr(self, self._admission)
        self._own_budget: int = self.max_num_scheduled_tokens
        self._pace = CorePace()
        self._faults = CoreFaults.from_environment()
        self._limits = CoreLimits()
        self._held_back: set[int] = set()
        self._stalled = False
        self._added = self._steps = self._preempted = 0
        self._prefill_tokens = self._decode_tokens = self._draft_tokens = self._accepted_tokens = 0
        self._schedule_s = self._device_s = self._update_s = 0.0
        self._take_limits()
        self._report()

    def add_request(self, request: Any) -> None:
        self._added += 1
        super().add_request(request)
        self._report()

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._take_limits()
        held = self._pace.rest(self._take_limits)
        if self._stalled and not held:
            self._pace.nap(lambda: _STALL_NAP_S * self._stalled, self._take_limits, _STALL_NAP_S)
        self.max_num_scheduled_tokens = 0 if held else self._budget()
        setattr(self, self._admission, self._cap())
        decoding = {request.request_id for request in self.running if not request.is_prefill_chunk}
        self._pace.account()
        output = super().schedule(*args, **kwargs)
        scheduled = output.num_scheduled_tokens
        self._preempted += len(output.preempted_req_ids or ())
        if scheduled:
            self._schedule_s += self._pace.account(busy=True)
            self._pace.in_flight += 1
            decoded = sum(count for request, count in scheduled.items() if request in decoding)
            self._decode_tokens += decoded
            self._prefill_tokens += output.total_num_scheduled_tokens - decoded
        # Nothing runs and nothing may: not the moment to ask again and again.
        limited = self._limits.max_batch is not None or self._limits.max_prefill_tokens is not None
        self._stalled = limited and not (scheduled or held or self._pace.in_flight)
        self._report()
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if not scheduler_output.num_scheduled_tokens:
            return super().update_from_output(scheduler_output, model_runner_output)
        self._steps += 1
        self._faults.perform(self._steps)
        self._device_s += self._pace.account()
        self._count_drafts(scheduler_output, model_runner_output)
        broken = {name for name, count in (model_runner_output.num_nans_in_logits or {}).items() if count}
        self._hold_back(broken)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if broken:
            self._fail(broken, outputs)
        self._update_s += self._pace.account()
        self._pace.in_flight -= 1
        self._report()
        return outputs

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        ended = super().finish_requests(request_ids, finished_status)
        self._report()
        return ended

    def _take_limits(self) -> None:
        limits = self._board.limits()
        if limits is None or limits.seq == self._limits.seq:
            return
        self._limits = limits.part(self._core, self._cores)
        self._pace.set_duty(limits.duty)
        self._stalled = False

    def _budget(self) -> int:
        """Tokens of this step."""
        if (prefill := self._limits.max_prefill_tokens) is None:
            return self._own_budget
        self.running.sort(key=lambda request: request.is_prefill_chunk)  # decodes first: the budget is theirs
        decodes = sum(
            request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
            for request in self.running
            if not request.is_prefill_chunk
        )
        return min(self._own_budget, decodes + prefill)

    def _cap(self) -> int:
        """Requests that may run; those that do are never too many."""
        cap = self._limits.max_batch
        return self._own_admission if cap is None else min(self._own_admission, max(cap, len(self.running)))

    def _count_drafts(self, scheduler_output: Any, model_runner_output: Any) -> None:
        for name, drafts in (scheduler_output.scheduled_spec_decode_tokens or {}).items():
            made = model_runner_output.sampled_token_ids[model_runner_output.req_id_to_index[name]]
            self._draft_tokens += len(drafts)
            self._accepted_tokens += max(0, len(made) - 1)

    def _hold_back(self, names: set[str]) -> None:
        """Never give the cache blocks of these requests to another one.

        They may hold NaN, and attention over a block that is only partly another request's reads all of it: NaN times a
        weight of 0 is NaN. Raises RuntimeError, which ends the engine core, when too much of the cache is lost so.
        """
        for name in names & self.requests.keys():
            for group in self.kv_cache_manager.get_blocks(name).blocks:
                for block in group:
                    if not block.is_null and block.block_id not in self._held_back:
                        block.ref_cnt += 1
                        self._held_back.add(block.block_id)
        total = self.kv_cache_manager.block_pool.num_gpu_blocks
        if len(self._held_back) > _MOST_HELD_BACK * total:
            raise RuntimeError(
                f"{len(self._held_back)} of {total} KV cache blocks may hold NaN: the engine must be replaced"
            )

    def _fail(self, names: Iterable[str], outputs: Any) -> None:
        """End requests whose logits held NaN: what was sampled from them means nothing."""
        from vllm.v1.engine import FinishReason
        from vllm.v1.request import RequestStatus

        names = set(names)
        super().finish_requests(names & self.requests.keys(), RequestStatus.FINISHED_ERROR)
        for batch in outputs.values():
            for output in batch.outputs:
                if output.request_id in names:
                    output.new_token_ids, output.new_logprobs = [], None
                    output.finish_reason, output.stop_reason = FinishReason.ERROR, NON_FINITE

    def _report(self) -> None:
        pool = self.kv_cache_manager.block_pool
        total = pool.num_gpu_blocks - 1  # one is vLLM's placeholder
        size = self.block_size
        self._board.set_state(
            self._core,
            CoreState(
                limits_seq=self._limits.seq,
                added=self._added,
                live=len(self.requests),
                running=len(self.running),
                waiting=len(self.waiting),
                blocks_used=total - pool.get_num_free_blocks(),
                blocks_total=total,
                waiting_blocks=sum(-(-(request.num_tokens + 1) // size) for request in self.waiting),
                steps=self._steps,
                prefill_tokens=self._prefill_tokens,
                decode_tokens=self._decode_tokens,
                preempted=self._preempted,
                draft_tokens=self._draft_tokens,
                accepted_tokens=self._accepted_tokens,
                schedule_s=self._schedule_s,
                device_s=self._device_s,
                update_s=self._update_s,
                paced_s=self._pace.paced_s,
                idle_s=max(0.0, self._pace.idle_s),
            ),
        )
