"""Engine messages to and from protobuf: the one place that knows both."""

from coldplate.internal.v1 import engine_pb2 as pb
from coldplate.limits_proto import limits_from_proto
from coldplate.v1 import generation_pb2
from coldplate_engine.messages import (
    Cancel,
    Command,
    Constraint,
    Drain,
    EngineError,
    Finished,
    Sampling,
    SetLimits,
    Shutdown,
    StepOutput,
    StopCause,
    Submission,
    Thinking,
    TokenLogprob,
)
from coldplate_engine.worker_facts import WorkerFacts

_CAUSES = {
    StopCause.STOP_TOKEN: pb.STOP_CAUSE_STOP_TOKEN,
    StopCause.MAX_TOKENS: pb.STOP_CAUSE_MAX_TOKENS,
    StopCause.CONTEXT_FULL: pb.STOP_CAUSE_CONTEXT_FULL,
    StopCause.CANCELLED: pb.STOP_CAUSE_CANCELLED,
    StopCause.ERROR: pb.STOP_CAUSE_ERROR,
}
_ERRORS = {
    None: pb.ENGINE_ERROR_UNSPECIFIED,
    EngineError.NON_FINITE_LOGITS: pb.ENGINE_ERROR_NON_FINITE_LOGITS,
    EngineError.OUT_OF_MEMORY: pb.ENGINE_ERROR_OUT_OF_MEMORY,
    EngineError.UNSATISFIABLE: pb.ENGINE_ERROR_UNSATISFIABLE,
    EngineError.DEVICE: pb.ENGINE_ERROR_DEVICE,
    EngineError.REFUSED: pb.ENGINE_ERROR_REFUSED,
    EngineError.BAD_CONSTRAINT: pb.ENGINE_ERROR_BAD_CONSTRAINT,
}
_RESUME_LEVELS = {
    "exact": generation_pb2.RESUME_LEVEL_EXACT,
    "continuous": generation_pb2.RESUME_LEVEL_CONTINUOUS,
}
_MICROSECONDS = 1_000_000
_MOST_MICROSECONDS = 2**32 - 1


def command_from_proto(request: pb.RunRequest) -> Command | None:
    """None for a command this version does not know. Raises ValueError for limits out of range."""
    match request.WhichOneof("command"):
        case "submit":
            return _submission(request.submit)
        case "cancel":
            return Cancel(request.cancel.stream)
        case "set_limits":
            return SetLimits(request.set_limits.seq, limits_from_proto(request.set_limits.limits))
        case "drain":
            return Drain()
        case "shutdown":
            return Shutdown(request.shutdown.now)
        case _:
            return None


def _submission(submit: pb.Submit) -> Submission:
    return Submission(
        stream=submit.stream,
        request_id=submit.request_id,
        prompt_ids=tuple(submit.prompt_token_ids),
        emitted_ids=tuple(submit.emitted_token_ids),
        sampling=_sampling(submit.sampling),
        max_tokens=submit.max_tokens,
        stop_ids=frozenset(submit.stop_token_ids),
        priority=submit.priority,
        deadline_s=submit.deadline_ms / 1000 if submit.deadline_ms else None,
        sibling_of=submit.sibling_of,
        constraint=_constraint(submit.constraint) if submit.HasField("constraint") else None,
        min_tokens=submit.min_tokens,
        logprobs=submit.logprobs if submit.HasField("logprobs") else None,
        prompt_logprobs=submit.prompt_logprobs if submit.HasField("prompt_logprobs") else None,
        thinking=_thinking(submit.thinking) if submit.HasField("thinking") else None,
        cache_salt=submit.cache_salt,
    )


def _sampling(sampling: pb.SamplingParams) -> Sampling:
    return Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        repetition_penalty=sampling.repetition_penalty or 1.0,  # 0 is a sender that does not know the field
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=tuple(sorted(sampling.logit_bias.items())),
    )


def _constraint(constraint: pb.Constraint) -> Constraint:
    kind = constraint.WhichOneof("kind")
    if kind is None:
        return Constraint("grammar")  # empty, so it is refused where constraints are
    if kind == "choices":
        return Constraint(kind, choices=tuple(constraint.choices.texts))
    return Constraint(kind, text=getattr(constraint, kind))


def _thinking(thinking: pb.Thinking) -> Thinking:
    return Thinking(
        start_id=thinking.start_token_id,
        end_id=thinking.end_token_id,
        open=thinking.open,
        budget_tokens=thinking.budget_tokens if thinking.HasField("budget_tokens") else None,
        close_ids=tuple(thinking.close_token_ids),
    )


def step_to_proto(output: StepOutput) -> pb.RunResponse:
    stats = output.stats
    times = {
        f"{part}_us": min(_MOST_MICROSECONDS, round(seconds * _MICROSECONDS)) for part, seconds in stats.seconds.items()
    }
    credit = output.credit
    return pb.RunResponse(
        step=pb.Step(
            number=output.number,
            streams=output.streams,
            token_ids=output.token_ids,
            finished=[_finished(item) for item in output.finished],
            admitted=[pb.Admitted(stream=item.stream, cached_tokens=item.cached_tokens) for item in output.admitted],
            credit=pb.Credit(
                submits_seen=credit.submits_seen, free_slots=credit.free_slots, free_kv_tokens=credit.free_kv_tokens
            ),
            limits_seq=output.limits_seq,
            stats=pb.StepStats(
                running=stats.running,
                waiting=stats.waiting,
                prefill_tokens=stats.prefill_tokens,
                decode_tokens=stats.decode_tokens,
                kv_blocks_used=stats.kv_blocks_used,
                kv_blocks_total=stats.kv_blocks_total,
                preempted=stats.preempted,
                preempted_tokens=stats.preempted_tokens,
                cached_tokens=stats.cached_tokens,
                offloaded_tokens=stats.offloaded_tokens,
                kv_blocks_cached=stats.kv_blocks_cached,
                draft_tokens=stats.draft_tokens,
                accepted_tokens=stats.accepted_tokens,
                **times,
            ),
            logprobs=[pb.NewTokenLogprob(index=index, logprob=_logprob(item)) for index, item in output.logprobs],
            prompt_logprobs=[
                pb.PromptLogprobs(stream=part.stream, first=part.first, logprobs=[_logprob(i) for i in part.logprobs])
                for part in output.prompt_logprobs
            ],
        )
    )


def _logprob(item: TokenLogprob) -> generation_pb2.TokenLogprob:
    return generation_pb2.TokenLogprob(
        token_id=item.token_id,
        logprob=item.logprob,
        alternatives=[
            generation_pb2.TokenAlternative(token_id=token, logprob=logprob) for token, logprob in item.alternatives
        ],
    )


def _finished(item: Finished) -> pb.Finished:
    return pb.Finished(
        stream=item.stream,
        cause=_CAUSES[item.cause],
        stop_token_id=item.stop_token_id,
        error=_ERRORS[item.error],
        error_text=item.error_text[:500],
    )


def loading_to_proto(phase: str, progress: float) -> pb.RunResponse:
    return pb.RunResponse(loading=pb.Loading(phase=phase, progress=progress))


def hello_to_proto(facts: WorkerFacts) -> pb.RunResponse:
    """The hello of a fresh connection: everything is free."""
    model = facts.model
    return pb.RunResponse(
        hello=pb.Hello(
            engine=facts.engine,
            version=facts.version,
            model=facts.served_model_name,
            model_revision=model.revision,
            architecture=model.architecture,
            parameter_count=model.parameter_count,
            vocabulary_size=model.vocabulary_size,
            max_model_len=facts.max_model_len,
            max_num_seqs=facts.max_num_seqs,
            max_num_batched_tokens=facts.max_num_batched_tokens,
            block_size=facts.block_size,
            kv_cache_tokens=facts.kv_cache_tokens,
            dtype=model.dtype,
            quantization=model.quantization,
            devices=[facts.device, *facts.further_devices],
            chip=facts.chip,
            simulated=facts.simulated,
            levers=facts.levers,
            resume_level=_RESUME_LEVELS[facts.resume_level],
            rng=facts.rng,
            features=facts.features,
            pid=facts.pid,
            threads=facts.threads,
            load_phases=[pb.PhaseTime(name=name, seconds=seconds) for name, seconds in facts.load_phases],
            credit=pb.Credit(submits_seen=0, free_slots=facts.max_num_seqs, free_kv_tokens=facts.kv_cache_tokens),
            engine_settings=facts.engine_settings,
            weight_bytes=model.weight_bytes,
            kv_cache_bytes=facts.kv_cache_bytes,
        )
    )
