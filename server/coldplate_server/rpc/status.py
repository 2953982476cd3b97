"""The one table from errors to gRPC statuses, and their details in the google.rpc error model.

Details stay below 4 kB and the message below 1 kB: a larger trailer is replaced by RESOURCE_EXHAUSTED on its way, which
would hide the real status.
"""

from dataclasses import dataclass

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from coldplate.durations import to_duration
from coldplate_server import errors
from coldplate_server.errors import InvalidRequest, RequestError, UnknownModel
from coldplate_server.rpc.shorten import ascii_control, clip

DOMAIN = "coldplate"
MAX_MESSAGE_BYTES = 1000
MAX_DETAILS_BYTES = 3800
MAX_VIOLATIONS = 20
_MAX_FIELD_BYTES = 200
_MAX_DESCRIPTION_BYTES = 500
_MAX_FACTS = 16
_MAX_FACT_BYTES = 100

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """How one kind of error is told to the caller and counted.

    ``outcome`` is the word for metrics. ``final`` errors come again however often the same call is made, so clients are
    told not to retry.
    """

    code: grpc.StatusCode
    outcome: str
    final: bool = False


_TABLE: dict[type[RequestError], Answer] = {
    errors.InvalidRequest: Answer(grpc.StatusCode.INVALID_ARGUMENT, "invalid", final=True),
    errors.PromptTooLarge: Answer(grpc.StatusCode.INVALID_ARGUMENT, "invalid", final=True),
    errors.UnknownModel: Answer(grpc.StatusCode.NOT_FOUND, "invalid", final=True),
    errors.NoChatTemplate: Answer(grpc.StatusCode.FAILED_PRECONDITION, "invalid", final=True),
    errors.NoThinking: Answer(grpc.StatusCode.FAILED_PRECONDITION, "invalid", final=True),
    errors.DuplicateRequestId: Answer(grpc.StatusCode.ALREADY_EXISTS, "invalid", final=True),
    errors.FeatureUnimplemented: Answer(grpc.StatusCode.UNIMPLEMENTED, "invalid", final=True),
    errors.QueueFull: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "refused"),
    errors.ChecksBusy: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "refused"),
    errors.Overloaded: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "refused"),
    errors.Shed: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "refused"),
    errors.ContextCapped: Answer(grpc.StatusCode.FAILED_PRECONDITION, "refused"),
    errors.AdmissionClosed: Answer(grpc.StatusCode.UNAVAILABLE, "refused"),
    errors.Draining: Answer(grpc.StatusCode.UNAVAILABLE, "refused"),
    errors.NoWorker: Answer(grpc.StatusCode.UNAVAILABLE, "refused"),
    errors.QueueTimeout: Answer(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline"),
    errors.DeadlineExceeded: Answer(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline"),
    errors.EngineLost: Answer(grpc.StatusCode.UNAVAILABLE, "failed"),
    errors.StreamCut: Answer(grpc.StatusCode.ABORTED, "failed"),
    errors.ConstraintFailed: Answer(grpc.StatusCode.ABORTED, "failed", final=True),
    errors.NonFiniteLogits: Answer(grpc.StatusCode.INTERNAL, "failed", final=True),
    errors.DeviceOutOfMemory: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, "failed"),
    errors.DeviceFault: Answer(grpc.StatusCode.UNAVAILABLE, "failed"),
    errors.Aborted: Answer(grpc.StatusCode.ABORTED, "aborted", final=True),
    errors.SlowReader: Answer(grpc.StatusCode.ABORTED, "aborted", final=True),
}
_UNLISTED = Answer(grpc.StatusCode.UNKNOWN, "failed", final=True)


def answer_to(error: RequestError) -> Answer:
    """The row of the table for ``error``, or for the nearest of its base classes."""
    return next((_TABLE[kind] for kind in type(error).__mro__ if kind in _TABLE), _UNLISTED)


def outcome_of(error: RequestError) -> str:
    """The word for metrics: invalid, refused, deadline, failed or aborted."""
    return answer_to(error).outcome


def to_status(error: RequestError) -> tuple[grpc.StatusCode, str, Metadata]:
    """Code, message and trailing metadata for ``context.abort``.

    The metadata holds the details and, where the caller should wait or must not retry, ``grpc-retry-pushback-ms``,
    which stock clients obey.
    """
    answer = answer_to(error)
    message = clip(ascii_control(clip(error.message, MAX_MESSAGE_BYTES)), MAX_MESSAGE_BYTES)
    metadata: list[tuple[str, str | bytes]] = [("grpc-status-details-bin", _details(error, answer, message))]
    if answer.final:
        metadata.append(("grpc-retry-pushback-ms", "-1"))
    elif error.retry_after_s is not None:
        metadata.append(("grpc-retry-pushback-ms", str(max(0, round(error.retry_after_s * 1000)))))
    return answer.code, message, tuple(metadata)


def _details(error: RequestError, answer: Answer, message: str) -> bytes:
    """A serialised google.rpc.Status; as many violations as fit, the first ones."""
    status = status_pb2.Status(code=answer.code.value[0], message=message)
    _append(status, error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=_facts(error)))
    if error.retry_after_s is not None and not answer.final:
        _append(status, error_details_pb2.RetryInfo(retry_delay=to_duration(max(0.0, error.retry_after_s))))
    if isinstance(error, UnknownModel):
        name = clip(error.facts.get("model", ""), _MAX_FACT_BYTES)
        _append(status, error_details_pb2.ResourceInfo(resource_type="model", resource_name=name))
    if isinstance(error, InvalidRequest):
        _append(status, _bad_request(error, MAX_DETAILS_BYTES - status.ByteSize()))
    return bytes(status.SerializeToString())


def _facts(error: RequestError) -> dict[str, str]:
    return {key: clip(value, _MAX_FACT_BYTES) for key, value in list(error.facts.items())[:_MAX_FACTS]}


def _bad_request(error: InvalidRequest, room: int) -> error_details_pb2.BadRequest:
    request = error_details_pb2.BadRequest()
    for violation in error.violations[:MAX_VIOLATIONS]:
        request.field_violations.add(
            field=clip(violation.field, _MAX_FIELD_BYTES),
            description=clip(violation.description, _MAX_DESCRIPTION_BYTES),
        )
        # 80 bytes: the type URL of the Any around it, with its tags and lengths.
        if request.ByteSize() + 80 > room:
            del request.field_violations[-1]
            break
    return request


def _append(status: status_pb2.Status, detail: Message) -> None:
    status.details.add().Pack(detail)
