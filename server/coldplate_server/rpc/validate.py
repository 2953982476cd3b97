"""Every check of a generation request that needs neither the model nor the queue.

All violations are collected and raised as one InvalidRequest, with proto paths below ``prefix``. Only a request without
any is asked whether it needs what this version does not serve.
"""

import math
from collections.abc import Iterable, Sequence

from google.protobuf.duration_pb2 import Duration

from coldplate.durations import to_seconds
from coldplate.v1 import generation_pb2
from coldplate_server.errors import FeatureUnimplemented, InvalidRequest, Violation
from coldplate_server.rpc.shorten import quoted
from coldplate_server.text.constraint import MAX_CONSTRAINT_BYTES
from coldplate_server.text.stop import MAX_STOP_CHARACTERS, MAX_STOP_SEQUENCES

MAX_REQUEST_ID_BYTES = 256
MAX_CHOICES = 64
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGPROBS = 20
MAX_CHOICE_TEXTS = 1024
# What is looked at one by one is bounded: a message of millions of empty parts would hold up every other caller.
MAX_MESSAGES = MAX_PARTS = MAX_LOGIT_BIASES = 16_384
MAX_TOKEN_IDS = 2**20
_MAX_REPORTED = 50
_DURATION_MAX_S = 315_576_000_000


class Checker:
    """Collects violations; ``at`` paths are relative to the prefix."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._violations: list[Violation] = []

    def add(self, at: str, description: str) -> None:
        if len(self._violations) < _MAX_REPORTED:
            self._violations.append(Violation(self._prefix + at, description))

    def number(self, at: str, value: float, low: float, high: float, *, above_low: bool = False) -> None:
        """``low`` to ``high``, finite; ``above_low`` leaves ``low`` itself out."""
        if not math.isfinite(value) or value > high or value < low or (above_low and value == low):
            span = f"above {low:g} and at most {high:g}" if above_low else f"{low:g} to {high:g}"
            self.add(at, f"is {value:g}, expected {span}")

    def at_least(self, at: str, value: int, low: int) -> None:
        if value < low:
            self.add(at, f"is {value}, expected at least {low}")

    def at_most(self, at: str, count: int, most: int, what: str) -> bool:
        """Whether there are no more than ``most``."""
        if count > most:
            self.add(at, f"holds {count} {what}, expected at most {most}")
        return count <= most

    def token_ids(self, at: str, ids: Sequence[int]) -> None:
        """Not too many, and none below 0; the first that is."""
        if self.at_most(at, len(ids), MAX_TOKEN_IDS, "ids") and ids and min(ids) < 0:
            index, token = next((index, token) for index, token in enumerate(ids) if token < 0)
            self.add(f"{at}[{index}]", f"is {token}, expected a token id, which is never negative")

    def duration(self, at: str, value: Duration, *, low_s: float = 0.0) -> None:
        """A well-formed protobuf duration of at least ``low_s`` seconds."""
        mixed_signs = value.seconds * value.nanos < 0
        if abs(value.nanos) > 999_999_999 or abs(value.seconds) > _DURATION_MAX_S or mixed_signs:
            self.add(at, f"is not a valid duration (seconds {value.seconds}, nanos {value.nanos})")
        elif to_seconds(value) < low_s:
            self.add(at, f"is {to_seconds(value):g} s, expected at least {low_s:g} s")

    def known(self, at: str, value: int, names: Iterable[int]) -> None:
        """An open enum may carry any number on the wire."""
        if value not in names:
            self.add(at, f"is {value}, which is no known value")

    def finish(self) -> None:
        """Raises InvalidRequest when anything was added."""
        if self._violations:
            raise InvalidRequest(self._violations)


def check_generation(message: generation_pb2.GenerateRequest, prefix: str = "") -> None:
    """Raises InvalidRequest, or FeatureUnimplemented naming the field that is not served yet."""
    check = Checker(prefix)
    _request_id(check, message.request_id)
    match message.WhichOneof("input"):
        case None:
            check.add("input", "is missing: set one of text, token_ids and conversation")
        case "token_ids":
            if not message.token_ids.ids:
                check.add("token_ids.ids", "is empty: there is nothing to continue")
            check.token_ids("token_ids.ids", message.token_ids.ids)
        case "conversation":
            check_conversation(check, message.conversation)
    _sampling(check, message.sampling)
    _stopping(check, message.stopping)
    _constraint(check, message)
    _reporting(check, message.reporting)
    check.known("scheduling.priority", message.scheduling.priority, generation_pb2.Priority.values())
    if message.scheduling.HasField("queue_timeout"):
        check.duration("scheduling.queue_timeout", message.scheduling.queue_timeout)
    check.known("fallback", message.fallback, generation_pb2.Fallback.values())
    _resume(check, message)
    if message.reasoning.HasField("budget_tokens"):
        check.at_least("reasoning.budget_tokens", message.reasoning.budget_tokens, 0)
    check.finish()
    refuse_unserved(unserved_in_conversation(message.conversation), prefix)


def check_stream_options(message: generation_pb2.StreamOptions, prefix: str = "") -> None:
    """Raises InvalidRequest."""
    check = Checker(prefix)
    check.duration("flush_interval", message.flush_interval)
    check.duration("progress_interval", message.progress_interval)
    check.finish()


def check_conversation(check: Checker, conversation: generation_pb2.Conversation, at: str = "conversation") -> None:
    if not conversation.messages:
        check.add(f"{at}.messages", "is empty: a conversation needs at least one message")
        return
    if not check.at_most(f"{at}.messages", len(conversation.messages), MAX_MESSAGES, "messages"):
        return
    if not check.at_most(f"{at}.messages", sum(len(m.parts) for m in conversation.messages), MAX_PARTS, "parts"):
        return
    for index, message in enumerate(conversation.messages):
        here = f"{at}.messages[{index}]"
        if not message.role:
            check.add(f"{here}.role", "is empty")
        elif len(message.role) > 64:
            check.add(f"{here}.role", f"is {quoted(message.role)}, expected at most 64 characters")
        if message.text and message.parts:
            check.add(f"{here}.parts", "is set beside text: a message has either text or parts")
        for number, part in enumerate(message.parts):
            if part.WhichOneof("part") is None:
                check.add(f"{here}.parts[{number}]", "is empty: set text or image")
    if conversation.continue_final_message and conversation.messages[-1].role != "assistant":
        role = quoted(conversation.messages[-1].role)
        check.add(f"{at}.continue_final_message", f"needs a last message of the assistant, but its role is {role}")


def unserved_in_conversation(conversation: generation_pb2.Conversation, at: str = "conversation") -> Iterable[str]:
    """Fields of a conversation that this version does not serve."""
    if conversation.tools:
        yield f"{at}.tools"
    for index, message in enumerate(conversation.messages):
        here = f"{at}.messages[{index}]"
        if message.tool_calls:
            yield f"{here}.tool_calls"
        if message.tool_call_id:
            yield f"{here}.tool_call_id"
        for number, part in enumerate(message.parts):
            if part.WhichOneof("part") == "image":
                yield f"{here}.parts[{number}].image"


def refuse_unserved(fields: Iterable[str], prefix: str = "") -> None:
    """Raises FeatureUnimplemented for the first of ``fields``, if there is one."""
    field = next(iter(fields), None)
    if field is not None:
        raise FeatureUnimplemented(
            f"{prefix}{field} is not served by this version; leave it unset", field=prefix + field
        )


def _request_id(check: Checker, value: str) -> None:
    size = len(value.encode())
    if size > MAX_REQUEST_ID_BYTES:
        check.add("request_id", f"is {quoted(value)}, expected at most {MAX_REQUEST_ID_BYTES} bytes")
    elif not value.isprintable():
        check.add("request_id", f"is {quoted(value)}, expected printable characters only")


def _sampling(check: Checker, sampling: generation_pb2.Sampling) -> None:
    if sampling.HasField("temperature"):
        check.number("sampling.temperature", sampling.temperature, 0, 100)
    if sampling.HasField("top_p"):
        check.number("sampling.top_p", sampling.top_p, 0, 1, above_low=True)
    check.at_least("sampling.top_k", sampling.top_k, 0)
    check.number("sampling.min_p", sampling.min_p, 0, 1)
    if sampling.HasField("n"):
        check.number("sampling.n", sampling.n, 1, MAX_CHOICES)
    if sampling.HasField("repetition_penalty"):
        check.number("sampling.repetition_penalty", sampling.repetition_penalty, 0, 100, above_low=True)
    check.number("sampling.presence_penalty", sampling.presence_penalty, -2, 2)
    check.number("sampling.frequency_penalty", sampling.frequency_penalty, -2, 2)
    if not check.at_most("sampling.logit_bias", len(sampling.logit_bias), MAX_LOGIT_BIASES, "tokens"):
        return
    for token, bias in sorted(sampling.logit_bias.items()):
        if token < 0:
            check.add(f"sampling.logit_bias[{token}]", "names a token id below 0")
        check.number(f"sampling.logit_bias[{token}]", bias, -100, 100)


def _stopping(check: Checker, stopping: generation_pb2.Stopping) -> None:
    check.at_least("stopping.min_tokens", stopping.min_tokens, 0)
    if stopping.HasField("max_tokens"):
        check.at_least("stopping.max_tokens", stopping.max_tokens, 1)
        if 1 <= stopping.max_tokens < stopping.min_tokens:
            check.add(
                "stopping.min_tokens", f"is {stopping.min_tokens}, above max_tokens, which is {stopping.max_tokens}"
            )
    sequences = stopping.stop_sequences
    check.at_most("stopping.stop_sequences", len(sequences), MAX_STOP_SEQUENCES, "strings")
    for index, sequence in enumerate(sequences[:MAX_STOP_SEQUENCES]):
        if not sequence:
            check.add(f"stopping.stop_sequences[{index}]", "is empty: every text would match it")
        elif len(sequence) > MAX_STOP_CHARACTERS:
            limit = f"expected at most {MAX_STOP_CHARACTERS} characters"
            check.add(f"stopping.stop_sequences[{index}]", f"is {quoted(sequence)}, {limit}")
    check.at_most("stopping.stop_token_ids", len(stopping.stop_token_ids), MAX_STOP_TOKEN_IDS, "ids")
    check.token_ids("stopping.stop_token_ids", stopping.stop_token_ids)


def _constraint(check: Checker, message: generation_pb2.GenerateRequest) -> None:
    kind = message.WhichOneof("constraint")
    if kind is None:
        return
    if kind == "choices" and not message.choices.texts:
        check.add("choices.texts", "is empty: there is nothing to choose from")
    if not check.at_most("choices.texts", len(message.choices.texts), MAX_CHOICE_TEXTS, "texts"):
        return
    texts = list(message.choices.texts) if kind == "choices" else [getattr(message, kind)]
    if kind in ("json_schema", "grammar") and not texts[0]:
        check.add(kind, "is empty")
    for index, text in enumerate(texts):
        if kind == "choices" and not text:
            check.add(f"choices.texts[{index}]", "is empty: an answer has at least one character")
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_CONSTRAINT_BYTES:
        check.add(kind, f"has {size} bytes, expected at most {MAX_CONSTRAINT_BYTES}")


def _reporting(check: Checker, reporting: generation_pb2.Reporting) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        if reporting.HasField(name):
            check.number(f"reporting.{name}", getattr(reporting, name), 0, MAX_LOGPROBS)


def _resume(check: Checker, message: generation_pb2.GenerateRequest) -> None:
    if not message.HasField("resume"):
        return
    check.token_ids("resume.emitted_token_ids", message.resume.emitted_token_ids)
    sampling, stopping, emitted = message.sampling, message.stopping, len(message.resume.emitted_token_ids)
    if sampling.n > 1:
        check.add("sampling.n", f"is {sampling.n}, but resume continues one answer: ask for one, with its own seed")
    if sampling.HasField("seed") and sampling.seed != message.resume.seed:
        check.add("resume.seed", f"is {message.resume.seed}, but sampling.seed is {sampling.seed}")
    if stopping.HasField("max_tokens") and 1 <= stopping.max_tokens < emitted:
        above = f"is above max_tokens, which is {stopping.max_tokens} and counts them"
        check.add("resume.emitted_token_ids", f"holds {emitted} tokens, which {above}")
