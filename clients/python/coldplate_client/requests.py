"""From Python arguments to request messages. Shared by the synchronous and the asynchronous client."""

from collections.abc import Mapping, Sequence
from typing import TypedDict, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as ProtoMessage

from coldplate.durations import to_duration
from coldplate.transport import MAX_MESSAGE_BYTES
from coldplate.v1 import generation_pb2, token_pb2
from coldplate_client.constraints import set_constraint
from coldplate_client.text import check_text
from coldplate_client.types import Fallback, Message, Priority, Resume

MessageLike = Message | Mapping[str, str]
Conversation = Sequence[MessageLike]
Prompt = str | Sequence[int] | Conversation
_INT32_MIN, _INT32_MAX, _UINT64_MAX = -(2**31), 2**31 - 1, 2**64 - 1
T = TypeVar("T", token_pb2.TokenizeRequest, token_pb2.CountTokensRequest)


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of ``generate``, ``chat`` and ``stream``; what is left out is the service's default.

    ``timeout_s`` is the call's deadline, queueing and generation together; ``queue_timeout_s`` only the wait in the
    queue. ``stop`` texts and ``stop_token_ids`` end the answer and are not part of it. ``n`` answers are made.
    ``logprobs`` and ``prompt_logprobs`` are the alternatives to report for each token. One of ``json_schema`` (text, or
    the schema as a mapping), ``regex``, ``choices`` and ``grammar`` (Lark) says what the answer must be. ``reasoning``
    switches a thinking model's thinking on or off.
    """

    model: str
    request_id: str
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int
    min_p: float
    seed: int | None
    n: int | None
    repetition_penalty: float | None
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    min_tokens: int
    logprobs: int | None
    prompt_logprobs: int | None
    json_schema: str | Mapping[str, object] | None
    regex: str | None
    choices: Sequence[str] | None
    grammar: str | None
    reasoning: bool | None
    reasoning_budget_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_end_of_text: bool
    special_tokens: bool
    priority: Priority | str | None
    fallback: Fallback | str | None
    queue_timeout_s: float | None
    resume: Resume | None
    continue_final_message: bool
    timeout_s: float | None


class StreamOptions(GenerateOptions, total=False):
    """``flush_interval_s`` joins the tokens of a span; ``progress_interval_s`` asks for signs of life meanwhile."""

    flush_interval_s: float | None
    progress_interval_s: float | None


def build_generate(
    prompt: Prompt,
    *,
    model: str = "",
    request_id: str = "",
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int = 0,
    min_p: float = 0.0,
    seed: int | None = None,
    n: int | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    min_tokens: int = 0,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    json_schema: str | Mapping[str, object] | None = None,
    regex: str | None = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    reasoning: bool | None = None,
    reasoning_budget_tokens: int | None = None,
    stop: str | Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    ignore_end_of_text: bool = False,
    special_tokens: bool = False,
    priority: Priority | str | None = None,
    fallback: Fallback | str | None = None,
    queue_timeout_s: float | None = None,
    resume: Resume | None = None,
    continue_final_message: bool = False,
) -> generation_pb2.GenerateRequest:
    """The request message. Raises ValueError or TypeError naming the argument that cannot be sent."""
    counts = {"max_tokens": max_tokens, "min_tokens": min_tokens, "top_k": top_k, "n": n, "logprobs": logprobs}
    counts |= {"prompt_logprobs": prompt_logprobs, "reasoning_budget_tokens": reasoning_budget_tokens}
    for name, count in counts.items():
        check_integer(name, count)
    check_integer("seed", seed, 0, _UINT64_MAX)
    for token_id in logit_bias or ():
        check_integer("logit_bias", token_id)
    for at, token_id in enumerate(stop_token_ids):
        check_integer(f"stop_token_ids[{at}]", token_id)
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    request = generation_pb2.GenerateRequest(
        model=check_text("model", model),
        request_id=check_text("request_id", request_id),
        sampling=generation_pb2.Sampling(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seed=seed,
            n=n,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias=logit_bias,
        ),
        stopping=generation_pb2.Stopping(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_sequences=[check_text(f"stop[{at}]", text) for at, text in enumerate(stops)],
            stop_token_ids=stop_token_ids,
            ignore_end_of_text=ignore_end_of_text,
        ),
        reporting=generation_pb2.Reporting(
            token_ids=True, special_tokens=special_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs
        ),
    )
    set_constraint(request, json_schema, regex, choices, grammar)
    if reasoning is not None:
        request.reasoning.enabled = reasoning
    if reasoning_budget_tokens is not None:
        request.reasoning.budget_tokens = reasoning_budget_tokens
    if priority is not None:
        request.scheduling.priority = getattr(generation_pb2, f"PRIORITY_{Priority(priority).name}")
    if fallback is not None:
        request.fallback = getattr(generation_pb2, f"FALLBACK_{Fallback(fallback).name}")
    if queue_timeout_s is not None:
        request.scheduling.queue_timeout.CopyFrom(duration("queue_timeout_s", queue_timeout_s))
    if resume is not None:
        request.resume.CopyFrom(generation_pb2.Resume(emitted_token_ids=resume.token_ids, seed=resume.seed))
    _set_prompt(request, prompt, continue_final_message)
    check_size(request)
    return request


def build_stream(
    prompt: Prompt,
    *,
    flush_interval_s: float | None = None,
    progress_interval_s: float | None = None,
    **options: object,
) -> generation_pb2.StreamGenerateRequest:
    """As ``build_generate``, with the options of a stream."""
    request = generation_pb2.StreamGenerateRequest(request=build_generate(prompt, **options))  # type: ignore[arg-type]
    if flush_interval_s is not None:
        request.options.flush_interval.CopyFrom(duration("flush_interval_s", flush_interval_s))
    if progress_interval_s is not None:
        request.options.progress_interval.CopyFrom(duration("progress_interval_s", progress_interval_s))
    return request


def build_tokenize(
    prompt: str | Conversation, *, model: str = "", add_special_tokens: bool | None = None, pieces: bool = False
) -> token_pb2.TokenizeRequest:
    request = token_pb2.TokenizeRequest(model=check_text("model", model), pieces=pieces)
    if add_special_tokens is not None:
        request.add_special_tokens = add_special_tokens
    return _set_text_or_conversation(request, prompt)


def build_count(prompt: str | Conversation, *, model: str = "") -> token_pb2.CountTokensRequest:
    return _set_text_or_conversation(token_pb2.CountTokensRequest(model=check_text("model", model)), prompt)


def build_conversation(messages: Conversation, continue_final_message: bool = False) -> generation_pb2.Conversation:
    """A conversation from ``Message`` objects or from mappings with ``role`` and ``text`` (or ``content``)."""
    return generation_pb2.Conversation(
        messages=[_message(at, message) for at, message in enumerate(messages)],
        continue_final_message=continue_final_message,
    )


def check_integer(name: str, value: int | None, least: int = _INT32_MIN, most: int = _INT32_MAX) -> None:
    """Raises ValueError naming the argument when its field has no room for ``value``; None is not sent."""
    if isinstance(value, int) and not least <= value <= most:
        raise ValueError(f"{name} is {value}: expected {least} to {most}")


def take_timeout(options: dict[str, object]) -> float | None:
    """Take ``timeout_s``, the deadline of the call, out of ``options``. Raises ValueError when it is not a time."""
    timeout_s = options.pop("timeout_s", None)
    if timeout_s is None:
        return None
    duration("timeout_s", timeout_s)  # type: ignore[arg-type]
    return timeout_s  # type: ignore[return-value]


def check_size(message: ProtoMessage) -> None:
    """Raises ValueError when ``message`` is larger than either end of a connection accepts."""
    size = message.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"the request has {size} bytes; at most {MAX_MESSAGE_BYTES} can be sent")


def duration(name: str, seconds: float) -> Duration:
    """``seconds`` as a protobuf duration; raises ValueError naming the argument when it is not a time."""
    if not 0 <= seconds < 1e9:
        raise ValueError(f"{name} is {seconds}: expected seconds, at least 0")
    return to_duration(seconds)


def _set_prompt(request: generation_pb2.GenerateRequest, prompt: Prompt, continue_final_message: bool) -> None:
    if isinstance(prompt, str):
        request.text = check_text("prompt", prompt)
    elif prompt and all(isinstance(item, int) for item in prompt):
        for at, token_id in enumerate(prompt):
            check_integer(f"prompt[{at}]", token_id)  # type: ignore[arg-type]
        request.token_ids.ids.extend(prompt)  # type: ignore[arg-type]
    elif prompt and all(isinstance(item, Message | Mapping) for item in prompt):
        request.conversation.CopyFrom(build_conversation(prompt, continue_final_message))  # type: ignore[arg-type]
    else:
        raise TypeError("prompt: expected text, token ids, or messages, at least one of them and all of one kind")
    if continue_final_message and not request.HasField("conversation"):
        raise ValueError("continue_final_message: only a list of messages has a final message")


def _set_text_or_conversation(request: T, prompt: str | Conversation) -> T:
    if isinstance(prompt, str):
        request.text = check_text("text", prompt)
    else:
        request.conversation.CopyFrom(build_conversation(prompt))
    check_size(request)
    return request


def _message(at: int, message: MessageLike) -> generation_pb2.Message:
    if isinstance(message, Message):
        role, text = message.role, message.text
    else:
        unknown = set(message) - {"role", "text", "content"}
        if unknown or "role" not in message or len(message) != 2:
            raise ValueError(f"messages[{at}]: expected 'role' and 'text', got {sorted(message)}")
        role, text = message["role"], message.get("text", message.get("content", ""))
    return generation_pb2.Message(
        role=check_text(f"messages[{at}].role", role), text=check_text(f"messages[{at}].text", text)
    )
