"""Thin calls through the raw stubs, apart from the SDK, and the check that a service is as good as new."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from coldplate.v1 import admin_pb2, admin_pb2_grpc, device_pb2, device_pb2_grpc, generation_pb2, generation_pb2_grpc
from support.processes import GENERATION, Stack, until

FINISH = generation_pb2.FinishReason


def request(
    prompt: str | Sequence[int] | generation_pb2.Conversation | None = None, **options: Any
) -> generation_pb2.GenerateRequest:
    """A request, greedy unless ``temperature`` says otherwise (None leaves it unset).

    Options of the groups ``sampling``, ``stopping``, ``reporting`` and ``scheduling`` are given by their field name.
    """
    options.setdefault("temperature", 0.0)
    message = generation_pb2.GenerateRequest()
    if isinstance(prompt, str):
        message.text = prompt
    elif isinstance(prompt, generation_pb2.Conversation):
        message.conversation.CopyFrom(prompt)
    elif prompt is not None:
        message.token_ids.ids.extend(prompt)
    # The prompt is no option: "text" and "token_ids" are those of the report.
    groups = (message.reporting, message.sampling, message.stopping, message.scheduling, message)
    for name, value in options.items():
        if value is None:
            continue
        group = next(group for group in groups if name in group.DESCRIPTOR.fields_by_name)
        _set(group, name, value)
    return message


def _set(group: Any, name: str, value: Any) -> None:
    if isinstance(value, dict):
        getattr(group, name).update(value)
    elif isinstance(value, list | tuple):
        getattr(group, name).extend(value)
    elif hasattr(value, "DESCRIPTOR"):
        getattr(group, name).CopyFrom(value)
    else:
        setattr(group, name, value)


def chat(*turns: tuple[str, str], continue_final: bool = False) -> generation_pb2.Conversation:
    """A conversation of (role, text)."""
    messages = [generation_pb2.Message(role=role, text=text) for role, text in turns]
    return generation_pb2.Conversation(messages=messages, continue_final_message=continue_final)


@dataclass(slots=True)
class Outcome:
    """How a call ended, and all it brought until then. Times are monotonic seconds."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""
    details: list[Any] = field(default_factory=list)
    trailers: dict[str, str | bytes] = field(default_factory=dict)
    response: generation_pb2.GenerateResponse | None = None
    started: generation_pb2.Started | None = None
    deltas: list[generation_pb2.Delta] = field(default_factory=list)
    delta_times: list[float] = field(default_factory=list)
    migrations: list[generation_pb2.Migrated] = field(default_factory=list)
    prompt_logprobs: list[generation_pb2.TokenLogprob] = field(default_factory=list)
    finishes: list[generation_pb2.ChoiceFinished] = field(default_factory=list)
    completed: generation_pb2.Completed | None = None
    start_time: float = 0.0
    end_time: float = 0.0

    @property
    def ok(self) -> bool:
        return self.code is grpc.StatusCode.OK

    @property
    def elapsed_s(self) -> float:
        return self.end_time - self.start_time

    @property
    def finished(self) -> generation_pb2.ChoiceFinished | None:
        """The end of the only choice of a stream, or of the one that ended last."""
        return self.finishes[-1] if self.finishes else None

    @property
    def text(self) -> str:
        if self.response is not None:
            return self.response.choices[0].text
        return "".join(delta.text for delta in self.deltas)

    @property
    def reasoning(self) -> str:
        if self.response is not None:
            return self.response.choices[0].reasoning_text
        return "".join(delta.reasoning_text for delta in self.deltas)

    @property
    def logprobs(self) -> list[generation_pb2.TokenLogprob]:
        if self.response is not None:
            return list(self.response.choices[0].logprobs)
        return [item for delta in self.deltas for item in delta.logprobs]

    @property
    def choices(self) -> list[generation_pb2.Choice]:
        """All of them, put together from the deltas where they came as a stream."""
        if self.response is not None:
            return list(self.response.choices)
        made: dict[int, generation_pb2.Choice] = {}
        for delta in self.deltas:
            choice = made.setdefault(delta.choice_index, generation_pb2.Choice(index=delta.choice_index))
            choice.text += delta.text
            choice.reasoning_text += delta.reasoning_text
            choice.token_ids.extend(delta.token_ids)
            choice.logprobs.extend(delta.logprobs)
        for end in self.finishes:
            choice = made.setdefault(end.choice_index, generation_pb2.Choice(index=end.choice_index))
            choice.finish_reason = end.reason
        return [made[index] for index in sorted(made)]

    @property
    def token_ids(self) -> list[int]:
        if self.response is not None:
            return list(self.response.choices[0].token_ids)
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def token_count(self) -> int:
        return sum(delta.token_count for delta in self.deltas)

    @property
    def finish(self) -> str:
        """The finish reason without its prefix, or "" for a call that did not finish."""
        if self.response is not None:
            return FINISH.Name(self.response.choices[0].finish_reason).removeprefix("FINISH_REASON_")
        return FINISH.Name(self.finished.reason).removeprefix("FINISH_REASON_") if self.finished else ""

    @property
    def usage(self) -> generation_pb2.Usage:
        done = self.response or self.completed
        assert done is not None, f"not complete: {self.code.name} {self.message}"
        return done.usage

    @property
    def reason(self) -> str:
        """The reason word of the error details, or ""."""
        return next((item.reason for item in self.details if isinstance(item, error_details_pb2.ErrorInfo)), "")

    @property
    def fields(self) -> list[str]:
        """Proto paths named as violated."""
        bad = (item for item in self.details if isinstance(item, error_details_pb2.BadRequest))
        return [violation.field for item in bad for violation in item.field_violations]

    @property
    def retry_after_s(self) -> float | None:
        hints = (item for item in self.details if isinstance(item, error_details_pb2.RetryInfo))
        return next((hint.retry_delay.ToTimedelta().total_seconds() for hint in hints), None)


def unary(
    stack: Stack,
    message: generation_pb2.GenerateRequest,
    timeout_s: float | None = 30.0,
    metadata: Sequence[tuple[str, str]] = (),
) -> Outcome:
    """Generate. Never raises for a status."""
    outcome = Outcome(start_time=time.monotonic())
    stub = generation_pb2_grpc.GenerationServiceStub(stack.channel)
    try:
        outcome.response = stub.Generate(message, timeout=timeout_s, metadata=metadata)
    except grpc.RpcError as error:
        _note_error(outcome, error)
    outcome.end_time = time.monotonic()
    return outcome


class StreamCall:
    """A StreamGenerate call that reads when told to, or in its own thread after ``start_reading``."""

    def __init__(self, stack: Stack, message: generation_pb2.GenerateRequest, timeout_s: float | None = 60.0) -> None:
        stub = generation_pb2_grpc.GenerationServiceStub(stack.channel)
        self.outcome = Outcome(start_time=time.monotonic())
        self._call = stub.StreamGenerate(generation_pb2.StreamGenerateRequest(request=message), timeout=timeout_s)
        self._events: Iterator[generation_pb2.StreamGenerateResponse] = iter(self._call)
        self._thread: threading.Thread | None = None

    def read_one(self) -> bool:
        """Take one event; False at the end of the call."""
        try:
            event = next(self._events)
        except StopIteration:
            self.outcome.trailers = _metadata(self._call.trailing_metadata())
        except grpc.RpcError as error:
            _note_error(self.outcome, error)
        else:
            self._note(event)
            return True
        self.outcome.end_time = time.monotonic()
        return False

    def read_until(self, condition: Callable[[Outcome], bool]) -> "StreamCall":
        """Read until the condition holds. Raises AssertionError when the call ends before."""
        while not condition(self.outcome):
            assert self.read_one(), (
                f"ended early: {self.outcome.code.name} {self.outcome.message} {self.outcome.text!r}"
            )
        return self

    def read_deltas(self, count: int = 1) -> "StreamCall":
        return self.read_until(lambda outcome: len(outcome.deltas) >= count)

    def read_all(self) -> Outcome:
        while self.read_one():
            pass
        return self.outcome

    def start_reading(self) -> "StreamCall":
        self._thread = threading.Thread(target=self.read_all, daemon=True)
        self._thread.start()
        return self

    def result(self, timeout_s: float = 60.0) -> Outcome:
        """Wait for the reading thread."""
        assert self._thread is not None
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"the stream is still open after {timeout_s} s: {self.outcome.text[-80:]!r}"
        return self.outcome

    def cancel(self) -> None:
        self._call.cancel()

    def _note(self, event: generation_pb2.StreamGenerateResponse) -> None:
        kind = event.WhichOneof("event")
        if kind == "delta":
            self.outcome.deltas.append(event.delta)
            self.outcome.delta_times.append(time.monotonic())
        elif kind == "migrated":
            self.outcome.migrations.append(event.migrated)
        elif kind == "started":
            self.outcome.started = event.started
        elif kind == "choice_finished":
            self.outcome.finishes.append(event.choice_finished)
        elif kind == "prompt_logprobs":
            self.outcome.prompt_logprobs.extend(event.prompt_logprobs.logprobs)
        elif kind == "completed":
            self.outcome.completed = event.completed


def stream(stack: Stack, message: generation_pb2.GenerateRequest, timeout_s: float | None = 60.0) -> Outcome:
    """StreamGenerate, read to its end."""
    return StreamCall(stack, message, timeout_s).read_all()


def both(stack: Stack, message: generation_pb2.GenerateRequest) -> Outcome:
    """The stream's outcome, once it is shown to be whole and equal to the unary answer, code point for code point."""
    whole, joined = unary(stack, message), stream(stack, message)
    assert joined.ok, f"{joined.code.name}: {joined.message}"
    assert whole.ok, f"{whole.code.name}: {whole.message}"
    assert joined.text == whole.text
    assert joined.reasoning == whole.reasoning
    assert joined.logprobs == whole.logprobs
    assert joined.finish == whole.finish
    assert joined.completed is not None
    expected_index = 0
    for delta in joined.deltas:
        assert delta.first_token_index == expected_index
        expected_index += delta.token_count
    assert expected_index == joined.completed.usage.completion_tokens == whole.usage.completion_tokens
    return joined


def status(stack: Stack, timeout_s: float = 5.0) -> device_pb2.ServiceStatus:
    stub = device_pb2_grpc.DeviceServiceStub(stack.channel)
    answer: device_pb2.GetStatusResponse = stub.GetStatus(device_pb2.GetStatusRequest(), timeout=timeout_s)
    return answer.status


@dataclass(frozen=True, slots=True)
class Gauges:
    """What must be back at its start value when nothing is going on."""

    queued: int
    running: int
    pending: int
    kv_tokens_used: int


def gauges(stack: Stack) -> Gauges:
    now = status(stack)
    return Gauges(
        now.queued,
        now.running + sum(device.running for device in now.devices),
        sum(device.pending for device in now.devices),
        sum(device.kv_tokens_used for device in now.devices),
    )


class Alive:
    """The follow-up to every case: the service answers as it did at the start, and nothing is left in its gauges."""

    def __init__(self, stack: Stack, model: str, usual_s: float = 2.0) -> None:
        self._stack = stack
        self._request = request("hello", model=model, max_tokens=4)
        self._usual_s = usual_s
        self._start = gauges(stack)
        first = unary(stack, self._request)
        assert first.ok, f"{first.code.name}: {first.message}"
        self.usual_text = first.text

    def check(self, settle_s: float = 2.0) -> None:
        answer = unary(self._stack, self._request)
        assert answer.ok, f"{answer.code.name}: {answer.message}"
        assert answer.text == self.usual_text
        assert answer.elapsed_s <= self._usual_s
        assert self._stack.health(GENERATION) == "SERVING"
        try:
            until("gauges at their start", lambda: gauges(self._stack) == self._start, settle_s)
        except TimeoutError:
            raise AssertionError(f"started with {self._start}, now {gauges(self._stack)}") from None


def _note_error(outcome: Outcome, error: Any) -> None:
    outcome.code = error.code()
    outcome.message = error.details() or ""
    outcome.trailers = _metadata(error.trailing_metadata())
    rich: status_pb2.Status | None = rpc_status.from_call(error)
    kinds = (
        error_details_pb2.BadRequest,
        error_details_pb2.ErrorInfo,
        error_details_pb2.RetryInfo,
        error_details_pb2.ResourceInfo,
        error_details_pb2.QuotaFailure,
        error_details_pb2.PreconditionFailure,
    )
    for packed in rich.details if rich else ():
        for kind in kinds:
            if packed.Is(kind.DESCRIPTOR):
                item = kind()
                packed.Unpack(item)
                outcome.details.append(item)


def _metadata(pairs: Any) -> dict[str, str | bytes]:
    return dict(pairs or ())


def limit(stack: Stack, **limits: Any) -> None:
    """Set limits by hand; without any, release them."""
    message = admin_pb2.SetOperatorLimitsRequest(limits=device_pb2.DeviceLimits(**limits))
    admin_pb2_grpc.AdminServiceStub(stack.control).SetOperatorLimits(message, timeout=5)
