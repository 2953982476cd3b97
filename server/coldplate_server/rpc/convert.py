"""Messages to domain values and back. Nothing else maps the two."""

from dataclasses import dataclass
from uuid import uuid4

from coldplate.durations import to_duration, to_seconds
from coldplate.v1 import generation_pb2
from coldplate_server.events import ChoiceFinished, Completed, Delta, Event, Progress, PromptLogprobs, Started
from coldplate_server.request import (
    ChatMessage,
    Constraint,
    Conversation,
    FallbackPolicy,
    GenerationRequest,
    Priority,
    Prompt,
    Reasoning,
    SamplingParams,
    StopRules,
)
from coldplate_server.result import ChoiceEnd, FinishReason, Timings, TokenLogprob, Usage
from coldplate_server.rpc.validate import check_generation, check_stream_options

_PRIORITIES = {
    generation_pb2.PRIORITY_UNSPECIFIED: Priority.NORMAL,
    generation_pb2.PRIORITY_LOW: Priority.LOW,
    generation_pb2.PRIORITY_NORMAL: Priority.NORMAL,
    generation_pb2.PRIORITY_HIGH: Priority.HIGH,
}
_FALLBACKS = {
    generation_pb2.FALLBACK_UNSPECIFIED: FallbackPolicy.SAME_MODEL,
    generation_pb2.FALLBACK_NEVER: FallbackPolicy.NEVER,
    generation_pb2.FALLBACK_SAME_MODEL: FallbackPolicy.SAME_MODEL,
    generation_pb2.FALLBACK_ANY: FallbackPolicy.ANY,
}
_FINISH_REASONS: dict[FinishReason, generation_pb2.FinishReason] = {
    FinishReason.END_OF_TEXT: generation_pb2.FINISH_REASON_END_OF_TEXT,
    FinishReason.STOP_SEQUENCE: generation_pb2.FINISH_REASON_STOP_SEQUENCE,
    FinishReason.MAX_TOKENS: generation_pb2.FINISH_REASON_MAX_TOKENS,
    FinishReason.CONTEXT_FULL: generation_pb2.FINISH_REASON_CONTEXT_FULL,
    FinishReason.TOOL_CALL: generation_pb2.FINISH_REASON_TOOL_CALL,
    FinishReason.DEADLINE: generation_pb2.FINISH_REASON_DEADLINE,
    FinishReason.ABORTED: generation_pb2.FINISH_REASON_ABORTED,
    FinishReason.SHED: generation_pb2.FINISH_REASON_SHED,
}

_PHASES = {
    "queued": generation_pb2.PHASE_QUEUED,
    "prefill": generation_pb2.PHASE_PREFILL,
    "decode": generation_pb2.PHASE_DECODE,
}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Seconds; 0 sends each token as soon as it is read, and no progress events."""

    flush_interval_s: float = 0.0
    progress_interval_s: float = 0.0


def generation_request(
    message: generation_pb2.GenerateRequest, prefix: str = "", *, request_id: str | None = None, tenant: str = ""
) -> GenerationRequest:
    """The request with defaults applied.

    ``prefix`` goes before field paths: "request." where the message is inside another. A request without an id gets
    ``request_id``, or a new one; its work is counted for ``tenant``. Raises InvalidRequest with every
    violation, or FeatureUnimplemented.
    """
    check_generation(message, prefix)
    resume = message.HasField("resume")
    sampling, stopping, reporting = message.sampling, message.stopping, message.reporting
    seed = sampling.seed if sampling.HasField("seed") else None
    return GenerationRequest(
        request_id=message.request_id or request_id or uuid4().hex,
        model=message.model,
        prompt=_prompt(message),
        sampling=SamplingParams(
            temperature=sampling.temperature if sampling.HasField("temperature") else 1.0,
            top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=message.resume.seed if resume else seed,
            repetition_penalty=sampling.repetition_penalty if sampling.HasField("repetition_penalty") else 1.0,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            logit_bias=dict(sampling.logit_bias),
        ),
        n=sampling.n if sampling.HasField("n") else 1,
        max_tokens=stopping.max_tokens if stopping.HasField("max_tokens") else None,
        stop=StopRules(
            sequences=tuple(stopping.stop_sequences),
            token_ids=frozenset(stopping.stop_token_ids),
            ignore_end_of_text=stopping.ignore_end_of_text,
            min_tokens=stopping.min_tokens,
        ),
        want_text=reporting.text if reporting.HasField("text") else True,
        want_token_ids=reporting.token_ids,
        special_tokens=reporting.special_tokens,
        logprobs=reporting.logprobs if reporting.HasField("logprobs") else None,
        prompt_logprobs=reporting.prompt_logprobs if reporting.HasField("prompt_logprobs") else None,
        constraint=_constraint(message),
        reasoning=Reasoning(
            message.reasoning.enabled if message.reasoning.HasField("enabled") else None,
            message.reasoning.budget_tokens if message.reasoning.HasField("budget_tokens") else None,
        ),
        priority=_PRIORITIES[message.scheduling.priority],
        queue_timeout_s=(
            to_seconds(message.scheduling.queue_timeout) if message.scheduling.HasField("queue_timeout") else None
        ),
        fallback=_FALLBACKS[message.fallback],
        resume_ids=tuple(message.resume.emitted_token_ids),
        tenant=tenant,
    )


def conversation(message: generation_pb2.Conversation) -> Conversation:
    """A checked conversation; the parts of a message are joined as they stand."""
    return Conversation(
        tuple(
            ChatMessage(turn.role, "".join(part.text for part in turn.parts) if turn.parts else turn.text)
            for turn in message.messages
        ),
        message.continue_final_message,
    )


def stream_options(message: generation_pb2.StreamOptions, prefix: str = "options.") -> StreamOptions:
    """Raises InvalidRequest."""
    check_stream_options(message, prefix)
    return StreamOptions(to_seconds(message.flush_interval), to_seconds(message.progress_interval))


def finish_reason(reason: FinishReason) -> generation_pb2.FinishReason:
    return _FINISH_REASONS[reason]


def token_logprob(value: TokenLogprob) -> generation_pb2.TokenLogprob:
    alternatives = [generation_pb2.TokenAlternative(token_id=t, logprob=logprob) for t, logprob in value.alternatives]
    return generation_pb2.TokenLogprob(token_id=value.token_id, logprob=value.logprob, alternatives=alternatives)


def usage(value: Usage) -> generation_pb2.Usage:
    return generation_pb2.Usage(
        prompt_tokens=value.prompt_tokens,
        completion_tokens=value.completion_tokens,
        cached_tokens=value.cached_tokens,
        reasoning_tokens=value.reasoning_tokens,
    )


def timings(value: Timings) -> generation_pb2.Timings:
    return generation_pb2.Timings(
        queued=to_duration(value.queued_s),
        prefill=to_duration(value.prefill_s),
        first_token=to_duration(value.first_token_s),
        decode=to_duration(value.decode_s),
        per_token=to_duration(value.per_token_s),
        total=to_duration(value.total_s),
        throttled=to_duration(value.throttled_s),
    )


def _constraint(message: generation_pb2.GenerateRequest) -> Constraint | None:
    match message.WhichOneof("constraint"):
        case None:
            return None
        case "choices":
            return Constraint("choices", tuple(message.choices.texts))
        case kind:
            return Constraint(kind, (getattr(message, kind),))


def _prompt(message: generation_pb2.GenerateRequest) -> Prompt:
    match message.WhichOneof("input"):
        case "text":
            return message.text
        case "token_ids":
            return tuple(message.token_ids.ids)
        case _:
            return conversation(message.conversation)


def set_match(message: generation_pb2.Choice | generation_pb2.ChoiceFinished, end: ChoiceEnd) -> None:
    """What ended the choice, where something matched."""
    if end.stop_sequence is not None:
        message.stop_sequence = end.stop_sequence
    elif end.stop_token_id is not None:
        message.stop_token_id = end.stop_token_id


def stream_response(event: Event) -> generation_pb2.StreamGenerateResponse:
    """The message of a stream that tells of ``event``."""
    match event:
        case Delta():
            delta = generation_pb2.Delta(
                choice_index=event.choice_index,
                first_token_index=event.first_token_index,
                token_count=event.token_count,
                text=event.text,
                reasoning_text=event.reasoning_text,
                token_ids=event.token_ids,
                logprobs=map(token_logprob, event.logprobs),
            )
            return generation_pb2.StreamGenerateResponse(delta=delta)
        case Started():
            started = generation_pb2.Started(
                request_id=event.request_id,
                model=event.model,
                model_revision=event.model_revision,
                device=event.device,
                prompt_tokens=event.prompt_tokens,
                cached_tokens=event.cached_tokens,
                seed=event.seed,
                max_tokens=event.max_tokens,
            )
            return generation_pb2.StreamGenerateResponse(started=started)
        case Progress():
            progress = generation_pb2.Progress(
                phase=_PHASES[event.phase], queue_position=event.queue_position, throttled=event.throttled
            )
            return generation_pb2.StreamGenerateResponse(progress=progress)
        case PromptLogprobs():
            prompt = generation_pb2.PromptLogprobs(
                first_token_index=event.first_token_index, logprobs=map(token_logprob, event.logprobs)
            )
            return generation_pb2.StreamGenerateResponse(prompt_logprobs=prompt)
        case ChoiceFinished():
            finished = generation_pb2.ChoiceFinished(
                choice_index=event.choice_index, reason=finish_reason(event.end.reason)
            )
            set_match(finished, event.end)
            return generation_pb2.StreamGenerateResponse(choice_finished=finished)
        case Completed():
            completed = generation_pb2.Completed(usage=usage(event.usage), timings=timings(event.timings))
            return generation_pb2.StreamGenerateResponse(completed=completed)
