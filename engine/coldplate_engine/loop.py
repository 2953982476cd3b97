"""The engine's step loop: commands in, one output per step out. Synchronous, in its own thread."""

import structlog

from coldplate.clock import Clock
from coldplate.limits import NO_LIMITS, Limits
from coldplate_engine.inbox import EXIT_OK, EXIT_REPLACE_DEVICE, Inbox
from coldplate_engine.intake import BuildsGuides, Intake
from coldplate_engine.messages import (
    Admitted,
    Cancel,
    Command,
    Connect,
    Disconnect,
    Drain,
    Emit,
    EngineError,
    Finished,
    GuideReady,
    PromptLogprobs,
    SetLimits,
    Shutdown,
    StepOutput,
    StepStats,
    StopCause,
    Submission,
)
from coldplate_engine.new_tokens import NewTokens, learn, look_ahead, take_tokens
from coldplate_engine.pacer import DutyPacer
from coldplate_engine.runner import Device
from coldplate_engine.scheduler import Scheduler, StepPlan
from coldplate_engine.speculation import Speculator
from coldplate_engine.step_executor import StepExecutor, StepResult
from coldplate_engine.step_sampler import StepSampler
from coldplate_engine.step_timer import StepTimer

log = structlog.get_logger()

# Steps in a row that brought nothing but this kind of fault, after which only a new process can help.
_HOPELESS_AFTER = {"oom": 2, "bug": 8}


class EngineLoop:
    """Runs steps until told to shut down or the device must be replaced.

    ``sampler`` is the executor's. Without ``constraints`` no constrained stream is taken, without ``speculator``
    nothing is guessed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: StepExecutor,
        device: Device,
        vocabulary_size: int,
        inbox: Inbox,
        clock: Clock,
        *,
        sampler: StepSampler,
        end_of_text: frozenset[int] = frozenset(),
        constraints: BuildsGuides | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._device = device
        self._sampler = sampler
        self._speculator = speculator
        self._intake = Intake(scheduler, vocabulary_size, end_of_text, constraints, inbox.put)
        self._inbox = inbox
        self._clock = clock
        self._pacer = DutyPacer()
        self._emit: Emit | None = None
        self._submits_seen = 0
        self._limits_seq = 0
        self._draining = False
        self._stopping = False
        self._exit: int | None = None
        self._finished: list[Finished] = []
        self._news = False  # credit or limits changed since the last output
        self._urgent = False  # and this must not wait for the next step
        self._stalled = False  # nothing may run until a command comes
        self._step_number = 0
        self._hopeless_steps = 0
        self._idle_s = self._paced_s = 0.0

    def run(self) -> int:
        """Returns the exit code of the process."""
        while self._exit is None:
            self._wait_and_apply()
            if self._urgent:
                self._send(StepStats())
            if self._exit is None and self._may_step():
                self._step()
            if self._news:
                self._send(StepStats())
            if self._stopping and self._scheduler.live == 0 and self._exit is None:
                self._exit = EXIT_OK
        return self._exit

    def _may_step(self) -> bool:
        return self._scheduler.live > 0 and not self._stalled and self._pacer.rest_s() == 0

    def _wait_and_apply(self) -> None:
        rest_s = self._pacer.rest_s()
        has_work = self._scheduler.live > 0 and not self._stalled
        start = self._clock.now()
        commands = self._inbox.take(rest_s if has_work else None)
        waited = self._clock.now() - start
        self._pacer.rested(waited)
        if has_work:
            self._paced_s += waited
        else:
            self._idle_s += waited
        for command in commands:
            self._stalled = False
            self._apply(command)

    def _apply(self, command: Command) -> None:
        match command:
            case Submission():
                self._submit(command)
            case GuideReady():
                if (ended := self._intake.guide_ready(command)) is not None:
                    self._scheduler.remove(ended.stream)
                    self._end_or_fail(command.submission, ended)
            case Cancel(stream):
                if self._scheduler.remove(stream) is not None:
                    self._end(Finished(stream, StopCause.CANCELLED))
            case SetLimits(seq, limits):
                self._set_limits(seq, limits)
            case Connect(emit):
                self._forget_server()
                self._emit = emit
            case Disconnect():
                self._forget_server()
            case Drain():
                self._draining = self._news = self._urgent = True
            case Shutdown(now):
                self._draining = self._stopping = self._news = True
                if now:
                    self._end_all(StopCause.CANCELLED)

    def _submit(self, submission: Submission) -> None:
        self._submits_seen += 1
        self._news = True
        if self._scheduler.has(submission.stream):
            log.error("stream number used twice: ignored", stream=submission.stream, request_id=submission.request_id)
            return
        if self._draining or self._scheduler.live >= self._scheduler.max_num_seqs:
            text = "the worker is draining" if self._draining else "submitted without credit"
            self._fail(submission, EngineError.REFUSED, text)
            return
        if (ended := self._intake.take(submission, self._clock.now())) is not None:
            self._end_or_fail(submission, ended)

    def _set_limits(self, seq: int, limits: Limits) -> None:
        old_share = self._scheduler.limits.cpu_share
        self._scheduler.limits = limits
        self._limits_seq = seq
        self._pacer.set_duty(limits.duty)
        self._sampler.max_reasoning_tokens = limits.max_reasoning_tokens
        if limits.cpu_share != old_share:
            self._device.set_cpu_share(1.0 if limits.cpu_share is None else limits.cpu_share)
        self._news = self._urgent = True

    def _forget_server(self) -> None:
        """A connection's streams, counts and limits end with it."""
        self._scheduler.remove_all()
        self._intake.forget()
        self._set_limits(0, NO_LIMITS)
        self._emit = None
        self._finished.clear()
        self._submits_seen = 0
        self._draining = self._stopping

    def _step(self) -> None:
        start = self._clock.now()
        timer = StepTimer()
        with timer.part("schedule"):
            for stream in self._scheduler.expired(start):
                self._scheduler.remove(stream)
                self._end(Finished(stream, StopCause.CANCELLED))
            plan = self._scheduler.schedule()
        if not plan.streams:
            self._stalled = True
            return
        self._step_number += 1
        result = self._executor.run(plan, timer)
        if result.copies_failed is not None:
            log.error("host memory for the KV cache is given up", reason=result.copies_failed.text)
            self._scheduler.undo(plan)
            return
        new = self._finish_step(plan, result)
        tokens = plan.prefill_tokens + plan.decode_tokens
        with timer.part("device"):
            self._device.after_step(timer.busy_s, tokens)
        self._pacer.worked(self._clock.now() - start)
        # This step's pause is still to come: the one before it is reported.
        timer.seconds["idle"], timer.seconds["paced"] = self._idle_s, self._paced_s
        self._idle_s = self._paced_s = 0.0
        stats = _stats_of(plan, timer)
        stats.accepted_tokens = new.accepted
        if self._speculator is not None and not plan.prefill_tokens:
            self._speculator.cost.measured(plan.decode_tokens, timer.busy_s)
        self._send(stats, new, result.prompt_logprobs, plan.admitted)

    def _finish_step(self, plan: StepPlan, result: StepResult) -> NewTokens:
        new = take_tokens(result, self._scheduler.max_model_len)
        if self._speculator is not None:
            drafted = {stream: len(stream.drafts) for stream in plan.streams if stream.drafts}
            learn(result, drafted, self._speculator)
        self._scheduler.commit(plan)
        for stream, ended in new.ends.values():
            self._scheduler.remove(stream.id)
            self._end_or_fail(stream.submission, ended)
        for stream_id, (error, text) in result.failed.items():
            if (failed := self._scheduler.remove(stream_id, forget=True)) is not None:
                self._fail(failed.submission, error, text)
        look_ahead(new.going, self._speculator)
        kind = result.failed_kind
        self._hopeless_steps = self._hopeless_steps + 1 if kind else 0
        if result.restart is not None:
            self._give_up(result.restart.text)
        elif kind is not None and self._hopeless_steps >= _HOPELESS_AFTER.get(kind, 1):
            self._give_up(f"{self._hopeless_steps} steps in a row failed")
        return new

    def _give_up(self, reason: str) -> None:
        log.error("device must be replaced: worker ends", reason=reason, streams=self._scheduler.live)
        self._end_all(StopCause.ERROR, EngineError.DEVICE, reason)
        self._exit = EXIT_REPLACE_DEVICE

    def _end_all(self, cause: StopCause, error: EngineError | None = None, text: str = "") -> None:
        for stream in self._scheduler.remove_all():
            self._end(Finished(stream.id, cause, error=error, error_text=text))

    def _fail(self, submission: Submission, error: EngineError, text: str) -> None:
        log.warning("stream failed", request_id=submission.request_id, error=error.value, reason=text)
        self._end(Finished(submission.stream, StopCause.ERROR, error=error, error_text=text))

    def _end_or_fail(self, submission: Submission, ended: Finished) -> None:
        if ended.error is not None:
            self._fail(submission, ended.error, ended.error_text)
        else:
            self._end(ended)

    def _end(self, finished: Finished) -> None:
        self._finished.append(finished)
        self._news = self._urgent = True

    def _send(
        self,
        stats: StepStats,
        new: NewTokens | None = None,
        prompt_logprobs: list[PromptLogprobs] | None = None,
        admitted: list[Admitted] | None = None,
    ) -> None:
        self._news = self._urgent = False
        finished, self._finished = self._finished, []
        if self._emit is None:
            return
        pool = self._scheduler.pool
        stats.running, stats.waiting = len(self._scheduler.running), len(self._scheduler.waiting)
        stats.kv_blocks_used, stats.kv_blocks_cached, stats.kv_blocks_total = pool.used, pool.cached, pool.num_blocks
        self._emit(
            StepOutput(
                number=self._step_number,
                streams=new.streams if new else [],
                token_ids=new.token_ids if new else [],
                finished=finished,
                admitted=admitted or [],
                credit=self._scheduler.credit(self._submits_seen, self._draining),
                limits_seq=self._limits_seq,
                stats=stats,
                logprobs=new.logprobs if new else [],
                prompt_logprobs=prompt_logprobs or [],
            )
        )


def _stats_of(plan: StepPlan, timer: StepTimer) -> StepStats:
    return StepStats(
        prefill_tokens=plan.prefill_tokens,
        decode_tokens=plan.decode_tokens,
        preempted=plan.preempted,
        preempted_tokens=plan.preempted_tokens,
        cached_tokens=plan.cached_tokens,
        offloaded_tokens=plan.offloaded_tokens,
        draft_tokens=plan.draft_tokens,
        seconds=timer.seconds,
    )
