"""Every way a call can fail, as typed exceptions, and the one table that makes them from gRPC statuses."""

# The names say what happened, as gRPC names its codes: an Error suffix would add nothing.

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from coldplate.durations import to_seconds
from coldplate_client.types import Answer

_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class Violation:
    """One unusable field of a request, by its proto path."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class Details:
    """What a status carries beside its code: ``reason`` is a stable upper-case word, ``facts`` are named values."""

    reason: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()
    retry_after_s: float | None = None


class ColdplateError(Exception):
    """A call failed.

    ``message`` is for people, ``reason`` for programs; ``code`` is the gRPC status. ``retry_after_s`` is the service's
    advice, where it gave one. ``partial`` is what had arrived of a streamed answer.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        details: Details | None = None,
        partial: Answer | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.partial = partial
        self.reason = details.reason if details else ""
        self.facts: dict[str, str] = dict(details.facts) if details else {}
        self.violations: tuple[Violation, ...] = details.violations if details else ()
        self.retry_after_s = details.retry_after_s if details else None


class InvalidRequest(ColdplateError):
    """The request cannot be served as it stands; ``violations`` name the fields."""


class NotFound(ColdplateError):
    """The model, device or request does not exist."""


class AlreadyExists(ColdplateError):
    """Another live request has this ``request_id``."""


class FailedPrecondition(ColdplateError):
    """Right request, wrong state: a conversation for a model without a chat template, say."""


class PermissionDenied(ColdplateError):
    """The caller may not do this."""


class Overloaded(ColdplateError):
    """Refused for want of room (queue, quota, memory); ``retry_after_s`` says when to come back."""


class Unavailable(ColdplateError):
    """Nothing answers, or the service takes no requests now: loading, draining, hot, worker lost."""


class DeadlineExceeded(ColdplateError):
    """The deadline passed, or the service saw that it could not be met."""


class Aborted(ColdplateError):
    """Ended before its end by the service; ``delivered`` tokens are valid and can be continued from."""

    @property
    def delivered(self) -> int:
        """Tokens delivered, as the service counts them, else as this client does."""
        told = self.facts.get("delivered_tokens", "")
        if told.isdigit():
            return int(told)
        return len(self.partial.token_ids) if self.partial else 0


class Unimplemented(ColdplateError):
    """A part of the contract that this version of the service does not serve."""

    @property
    def feature(self) -> str:
        """Path of the field that is not served; empty when it is the call itself."""
        return self.facts.get("field", "")


class Cancelled(ColdplateError):
    """The call was cancelled."""


class IncompleteAnswer(ColdplateError):
    """The stream ended without its last event: what came is not a whole answer."""


class ServiceFault(ColdplateError):
    """The service failed in a way that is nobody's request: INTERNAL, UNKNOWN or DATA_LOSS."""


_BY_CODE: Mapping[grpc.StatusCode, type[ColdplateError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNAUTHENTICATED: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.ABORTED: Aborted,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.INTERNAL: ServiceFault,
    grpc.StatusCode.UNKNOWN: ServiceFault,
    grpc.StatusCode.DATA_LOSS: ServiceFault,
}


def from_rpc_error(error: Any, partial: Answer | None = None) -> ColdplateError:
    """The typed exception for a failed call (``grpc.Call`` or ``grpc.aio.AioRpcError``)."""
    code = error.code()
    kind = _BY_CODE.get(code, ColdplateError)
    details = read_details(error.trailing_metadata() or ())
    message = error.details() or code.name.lower().replace("_", " ")
    return kind(message, code=code, details=details, partial=partial)


def read_details(trailing_metadata: Iterable[tuple[str, Any]]) -> Details:
    """What ``grpc-status-details-bin`` holds; empty when it is absent or not readable."""
    raw = next((value for key, value in trailing_metadata if key == _DETAILS_KEY), b"")
    status = status_pb2.Status()
    try:
        status.ParseFromString(raw)
    except DecodeError:
        return Details()
    info, bad_request, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    retry_after_s = None
    for packed in status.details:
        if packed.Unpack(retry):
            retry_after_s = to_seconds(retry.retry_delay)
        else:
            _ = packed.Unpack(info) or packed.Unpack(bad_request)
    return Details(
        reason=info.reason,
        facts=dict(info.metadata),
        violations=tuple(Violation(item.field, item.description) for item in bad_request.field_violations),
        retry_after_s=retry_after_s,
    )
