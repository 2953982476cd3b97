"""Messages to domain values and back. Nothing else maps the two."""

from dataclasses import dataclass
from uuid import uuid4

from coldplate.durations import to_duration, to_seconds
from coldplate.v1 import generation_pb2
from coldplate_server.request import (
    ChatMessage,
    Conversation,
    FallbackPolicy,
    GenerationRequest,
    Priority,
    Prompt,
    SamplingParams,
    StopRules,
)
from coldplate_server.result import FinishReason, Timings, Usage
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


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Seconds; 0 sends each token as soon as it is read, and no progress events."""

    flush_interval_s: float = 0.0
    progress_interval_s: float = 0.0


def generation_request(
    message: generation_pb2.GenerateRequest, prefix: str = "", *, request_id: str | None = None
) -> GenerationRequest:
    """The request with defaults applied.

    ``prefix`` goes before field paths: "request." where the message is inside another. A request without an id gets
    ``request_id``, or a new one. Raises InvalidRequest with every violation, or FeatureUnimplemented.
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
        ),
        max_tokens=stopping.max_tokens if stopping.HasField("max_tokens") else None,
        stop=StopRules(
            sequences=tuple(stopping.stop_sequences),
            token_ids=frozenset(stopping.stop_token_ids),
            ignore_end_of_text=stopping.ignore_end_of_text,
        ),
        want_text=reporting.text if reporting.HasField("text") else True,
        want_token_ids=reporting.token_ids,
        special_tokens=reporting.special_tokens,
        priority=_PRIORITIES[message.scheduling.priority],
        queue_timeout_s=(
            to_seconds(message.scheduling.queue_timeout) if message.scheduling.HasField("queue_timeout") else None
        ),
        fallback=_FALLBACKS[message.fallback],
        resume_ids=tuple(message.resume.emitted_token_ids),
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


def _prompt(message: generation_pb2.GenerateRequest) -> Prompt:
    match message.WhichOneof("input"):
        case "text":
            return message.text
        case "token_ids":
            return tuple(message.token_ids.ids)
        case _:
            return conversation(message.conversation)
