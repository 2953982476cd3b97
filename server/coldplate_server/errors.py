"""Everything that can end a request other than success, as typed exceptions free of gRPC.

``rpc/status.py`` holds the one table that maps them to status codes. Messages are for the caller: they name the value
and the way out, and never a class, a path or another caller's data.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class RequestError(Exception):
    """The end of one request. ``reason`` is a stable upper-case word for programs."""

    reason = "UNKNOWN"

    def __init__(self, message: str, *, retry_after_s: float | None = None, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.facts = {key: str(value) for key, value in facts.items()}


@dataclass(frozen=True, slots=True)
class Violation:
    """One unusable field, by its proto path."""

    field: str
    description: str


class InvalidRequest(RequestError):
    """Fields out of range, not finite or contradictory."""

    reason = "INVALID_REQUEST"

    def __init__(self, violations: Sequence[Violation], **facts: object) -> None:
        text = "; ".join(f"{item.field}: {item.description}" for item in violations)
        super().__init__(text, retry_after_s=None, **facts)
        self.violations = tuple(violations)


class UnknownModel(RequestError):
    reason = "UNKNOWN_MODEL"


class NoChatTemplate(RequestError):
    """A conversation was sent to a model without a chat template."""

    reason = "NO_CHAT_TEMPLATE"


class DuplicateRequestId(RequestError):
    reason = "DUPLICATE_REQUEST_ID"


class PromptTooLarge(InvalidRequest):
    """Refused by its size in bytes, before tokenising."""

    reason = "PROMPT_TOO_LARGE"


class NoThinking(RequestError):
    """Thinking was asked for, or asked away, of a model that cannot do so."""

    reason = "NO_THINKING"


class FeatureUnimplemented(RequestError):
    """A field of the contract that this version, or the engine behind the model, does not serve."""

    reason = "UNIMPLEMENTED_FEATURE"


class ConstraintFailed(RequestError):
    """After some tokens, no token could follow under the constraint."""

    reason = "CONSTRAINT_FAILED"


class ChecksBusy(RequestError):
    """Too many constraints wait to be checked."""

    reason = "CONSTRAINT_CHECKS_BUSY"


class QueueFull(RequestError):
    reason = "QUEUE_FULL"


class Overloaded(RequestError):
    """It would wait too long: its class has more waiting than is served in the time meant for it."""

    reason = "OVERLOADED"


class Shed(RequestError):
    """Refused because its priority is below what a limit allows, or displaced from the queue by a request before it."""

    reason = "SHED"


class ContextCapped(RequestError):
    """Too long for what a limit leaves of the context, though not for the model."""

    reason = "CONTEXT_CAPPED"


class AdmissionClosed(RequestError):
    """A limit closes every device that could serve it."""

    reason = "ADMISSION_CLOSED"


class QueueTimeout(RequestError):
    reason = "QUEUE_TIMEOUT"


class DeadlineExceeded(RequestError):
    """The caller's deadline passed, or cannot be met."""

    reason = "DEADLINE"


class Draining(RequestError):
    reason = "DRAINING"


class NoWorker(RequestError):
    """No worker serves the model now: loading, lost or failed."""

    reason = "NO_WORKER"


class EngineLost(RequestError):
    """The worker died before the first token."""

    reason = "ENGINE_LOST"


class StreamCut(RequestError):
    """The worker died after some tokens were delivered; ``facts`` tells how many."""

    reason = "STREAM_CUT"


class NonFiniteLogits(RequestError):
    reason = "NON_FINITE_LOGITS"


class DeviceOutOfMemory(RequestError):
    reason = "DEVICE_OOM"


class DeviceFault(RequestError):
    """The device failed in a step of this request."""

    reason = "DEVICE_FAULT"


class Aborted(RequestError):
    """Ended by an operator."""

    reason = "ABORTED"


class SlowReader(RequestError):
    """The caller stopped reading its answer."""

    reason = "SLOW_READER"
