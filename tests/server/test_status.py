"""The status table, and details that stock clients can read and transports let through."""

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from coldplate_server import errors
from coldplate_server.errors import InvalidRequest, QueueFull, RequestError, UnknownModel, Violation
from coldplate_server.rpc.status import MAX_DETAILS_BYTES, MAX_MESSAGE_BYTES, answer_to, outcome_of, to_status

Code = grpc.StatusCode
ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RequestError)]
CODES = {
    errors.InvalidRequest: Code.INVALID_ARGUMENT,
    errors.PromptTooLarge: Code.INVALID_ARGUMENT,
    errors.UnknownModel: Code.NOT_FOUND,
    errors.NoChatTemplate: Code.FAILED_PRECONDITION,
    errors.NoThinking: Code.FAILED_PRECONDITION,
    errors.ConstraintFailed: Code.ABORTED,
    errors.ChecksBusy: Code.RESOURCE_EXHAUSTED,
    errors.DuplicateRequestId: Code.ALREADY_EXISTS,
    errors.FeatureUnimplemented: Code.UNIMPLEMENTED,
    errors.QueueFull: Code.RESOURCE_EXHAUSTED,
    errors.Overloaded: Code.RESOURCE_EXHAUSTED,
    errors.Shed: Code.RESOURCE_EXHAUSTED,
    errors.ContextCapped: Code.FAILED_PRECONDITION,
    errors.AdmissionClosed: Code.UNAVAILABLE,
    errors.QueueTimeout: Code.DEADLINE_EXCEEDED,
    errors.DeadlineExceeded: Code.DEADLINE_EXCEEDED,
    errors.Draining: Code.UNAVAILABLE,
    errors.NoWorker: Code.UNAVAILABLE,
    errors.EngineLost: Code.UNAVAILABLE,
    errors.StreamCut: Code.ABORTED,
    errors.NonFiniteLogits: Code.INTERNAL,
    errors.DeviceOutOfMemory: Code.RESOURCE_EXHAUSTED,
    errors.DeviceFault: Code.UNAVAILABLE,
    errors.Aborted: Code.ABORTED,
    errors.SlowReader: Code.ABORTED,
    errors.RequestError: Code.UNKNOWN,
}


def details(error: RequestError) -> tuple[status_pb2.Status, dict[str, str | bytes]]:
    code, message, trailing = to_status(error)
    metadata = dict(trailing)
    status = status_pb2.Status.FromString(metadata.pop("grpc-status-details-bin"))
    assert (status.code, status.message) == (code.value[0], message)
    return status, metadata


def unpack(status: status_pb2.Status, kind: type) -> list[object]:
    found = []
    for detail in status.details:
        if detail.Is(kind.DESCRIPTOR):  # type: ignore[attr-defined]
            message = kind()
            detail.Unpack(message)
            found.append(message)
    return found


@pytest.mark.parametrize("kind", ALL)
def test_every_error_has_its_code(kind: type[RequestError]) -> None:
    error = InvalidRequest([Violation("f", "d")]) if issubclass(kind, InvalidRequest) else kind("text")
    assert to_status(error)[0] is CODES[kind]
    assert outcome_of(error) in {"invalid", "refused", "deadline", "failed", "aborted"}


def test_only_bad_logits_are_internal() -> None:
    assert [kind for kind, code in CODES.items() if code is Code.INTERNAL] == [errors.NonFiniteLogits]


def test_a_new_error_answers_as_its_base() -> None:
    class QuotaUsedUp(QueueFull):
        pass

    assert answer_to(QuotaUsedUp("x")).code is Code.RESOURCE_EXHAUSTED


def test_a_refusal_tells_when_to_come_back() -> None:
    status, metadata = details(QueueFull("the queue is full", retry_after_s=0.4, waiting=32))
    assert metadata == {"grpc-retry-pushback-ms": "400"}
    (info,) = unpack(status, error_details_pb2.ErrorInfo)
    assert info == error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="coldplate", metadata={"waiting": "32"})
    (retry,) = unpack(status, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 0.4  # type: ignore[attr-defined]


def test_what_cannot_get_better_is_not_retried() -> None:
    assert details(InvalidRequest([Violation("f", "d")]))[1] == {"grpc-retry-pushback-ms": "-1"}
    assert details(errors.EngineLost("gone"))[1] == {}


def test_violations_keep_their_paths() -> None:
    status, _ = details(InvalidRequest([Violation("sampling.top_p", "is 2"), Violation("text", "is empty")]))
    (request,) = unpack(status, error_details_pb2.BadRequest)
    found = [(item.field, item.description) for item in request.field_violations]  # type: ignore[attr-defined]
    assert found == [("sampling.top_p", "is 2"), ("text", "is empty")]


def test_an_unknown_model_is_a_resource() -> None:
    status, _ = details(UnknownModel("no such model", model="x"))
    (resource,) = unpack(status, error_details_pb2.ResourceInfo)
    assert resource == error_details_pb2.ResourceInfo(resource_type="model", resource_name="x")


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    repeat=st.sampled_from([1, 30, 600]),
    count=st.integers(1, 60),
)
def test_nothing_makes_a_status_too_long(text: str, repeat: int, count: int) -> None:
    value = text * repeat
    violations = InvalidRequest([Violation(f"field[{i}].{value}", value) for i in range(count)])
    facts = QueueFull(value, retry_after_s=1, **{f"k{i}": value for i in range(count)})
    for error in (violations, facts, UnknownModel(value, model=value)):
        _, message, trailing = to_status(error)
        assert len(message.encode()) <= MAX_MESSAGE_BYTES
        assert len(dict(trailing)["grpc-status-details-bin"]) <= MAX_DETAILS_BYTES < 4000
        assert message.isprintable()


def test_many_violations_keep_the_first_twenty() -> None:
    status, _ = details(InvalidRequest([Violation(f"f{i}", "bad") for i in range(100)]))
    (request,) = unpack(status, error_details_pb2.BadRequest)
    assert [item.field for item in request.field_violations] == [f"f{i}" for i in range(20)]  # type: ignore[attr-defined]
