"""What a worker's end of a stream means for its caller."""

from collections.abc import Callable

from coldplate.internal.v1 import engine_pb2
from coldplate_server.errors import (
    Aborted,
    ConstraintFailed,
    DeadlineExceeded,
    DeviceFault,
    DeviceOutOfMemory,
    EngineLost,
    InvalidRequest,
    NonFiniteLogits,
    NoWorker,
    RequestError,
    StreamCut,
    Violation,
)
from coldplate_server.journal import StreamRecord

_DEADLINE_SLACK_S = 0.1  # the worker counts in whole milliseconds, from when it heard of the deadline


def error_of(record: StreamRecord, finished: engine_pb2.Finished, now: float) -> RequestError:
    """For an end other than success; ``now`` is the clock's time."""
    if finished.cause == engine_pb2.STOP_CAUSE_CANCELLED:
        if record.deadline is not None and now >= record.deadline - _DEADLINE_SLACK_S:
            return DeadlineExceeded(
                f"the deadline passed after {record.delivered} tokens", delivered_tokens=record.delivered
            )
        return Aborted("the engine cancelled the request", delivered_tokens=record.delivered)
    if finished.error == engine_pb2.ENGINE_ERROR_BAD_CONSTRAINT:
        return _bad_constraint(record, finished.error_text)
    if (make := _ERRORS.get(finished.error)) is not None:
        return make(record)
    return DeviceFault("the engine failed on this request", delivered_tokens=record.delivered)


def lost_error(record: StreamRecord) -> RequestError:
    """For a stream whose worker is gone."""
    if record.delivered == 0:
        return EngineLost(
            "the engine was lost before the first token; the request can be sent again", retry_after_s=1.0
        )
    return StreamCut(
        f"the engine was lost after {record.delivered} tokens; what was delivered stands, the rest will not come",
        delivered_tokens=record.delivered,
    )


def _bad_constraint(record: StreamRecord, text: str) -> RequestError:
    reason = text or "the engine cannot follow it"
    if record.delivered == 0:
        return InvalidRequest([Violation(record.needs.get("guided", "constraint"), reason)])
    return ConstraintFailed(
        f"the answer cannot be continued under its constraint after {record.delivered} tokens: {reason}",
        delivered_tokens=record.delivered,
    )


_ERRORS: dict[int, Callable[[StreamRecord], RequestError]] = {
    engine_pb2.ENGINE_ERROR_NON_FINITE_LOGITS: lambda record: NonFiniteLogits(
        f"the model's output for this request became NaN or infinite after {record.delivered} tokens",
        delivered_tokens=record.delivered,
    ),
    engine_pb2.ENGINE_ERROR_OUT_OF_MEMORY: lambda record: DeviceOutOfMemory(
        "the device ran out of memory for this request", retry_after_s=1.0, delivered_tokens=record.delivered
    ),
    engine_pb2.ENGINE_ERROR_UNSATISFIABLE: lambda record: DeviceFault(
        "the engine cannot run this request", delivered_tokens=record.delivered
    ),
    engine_pb2.ENGINE_ERROR_DEVICE: lost_error,
    engine_pb2.ENGINE_ERROR_REFUSED: lambda record: NoWorker(
        "the engine stopped taking requests; try again", retry_after_s=1.0
    ),
}
