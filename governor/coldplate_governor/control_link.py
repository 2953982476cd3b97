"""The governor's side of ControlService: one call a second, whatever happens to the server.

Problems are logged when they begin and when they end, not every second.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import structlog

from coldplate.durations import to_duration
from coldplate.limits_proto import limits_to_proto
from coldplate.v1 import control_pb2, control_pb2_grpc, device_pb2
from coldplate_governor.explain.message import ExplanationWriter
from coldplate_governor.explain.trail import Account
from coldplate_governor.feedback import DeviceFeedback, feedback_of
from coldplate_governor.law import Decision
from coldplate_governor.sensors.device import DeviceReadings

_CALL_TIMEOUT_S = 0.8
_CHANNEL_OPTIONS = (
    # A restarted server is found within a second, not after grpc's default backoff of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Directive:
    """What one device gets, why, and what was seen."""

    device: str
    decision: Decision
    readings: DeviceReadings
    account: Account | None = None


class ControlLink:
    """Applies limits over the control socket ``address`` (``unix:/path``) as ``governor`` under leases of ``ttl_s``.

    The epoch is the wall clock at start in nanoseconds, the one use of it: it has to grow from one start of the process
    to the next. A clock set back makes the server refuse this governor until the lease of the last one has run out.
    """

    def __init__(self, address: str, governor: str, ttl_s: float = 5.0, epoch: int | None = None) -> None:
        self._address = address
        self._governor = governor
        self._ttl_s = ttl_s
        self.epoch = time.time_ns() if epoch is None else epoch
        self._seq = 0
        self._explanations = ExplanationWriter()
        self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub = control_pb2_grpc.ControlServiceStub(self._channel)
        self._trouble: object = None
        self._unknown: frozenset[str] = frozenset()

    def apply(self, directives: Sequence[Directive]) -> dict[str, DeviceFeedback] | None:
        """Send the directives. Returns the server's feedback by device, None when it did not answer or refused."""
        request = self.request(directives)
        try:
            reply = self._stub.ApplyLimits(request, timeout=_CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            self._report(error)
            return None
        if self._trouble is not None or self._seq == 1:
            log.info("limits applied", control=self._address, epoch=self.epoch)
        self._trouble = None
        unknown = frozenset(reply.unknown_devices)
        for device in sorted(unknown - self._unknown):
            log.warning("the server has no such device", device=device, do="start a worker for it, or drop --device")
        self._unknown = unknown
        return feedback_of(reply.devices, {item.device: item.decision.limits.duty for item in directives})

    def request(self, directives: Sequence[Directive]) -> control_pb2.ApplyLimitsRequest:
        """The directives as the next call."""
        self._seq += 1
        return control_pb2.ApplyLimitsRequest(
            governor=self._governor,
            epoch=self.epoch,
            seq=self._seq,
            ttl=to_duration(self._ttl_s),
            devices=[self._to_proto(directive) for directive in directives],
        )

    def close(self) -> None:
        self._channel.close()

    def _to_proto(self, directive: Directive) -> control_pb2.DeviceDirective:
        decision, account = directive.decision, directive.account
        return control_pb2.DeviceDirective(
            device=directive.device,
            limits=limits_to_proto(decision.limits),
            mode=decision.mode,
            reasons=[device_pb2.Reason(code=cause.code, text=cause.text) for cause in decision.causes],
            readings=readings_to_proto(directive.readings),
            retry_after=None if decision.retry_after_s is None else to_duration(decision.retry_after_s),
            explanation=None if account is None else self._explanations.write(directive.device, account),
        )

    def _report(self, error: grpc.RpcError) -> None:
        code = error.code()
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
            code = grpc.StatusCode.UNAVAILABLE
        if code == self._trouble:
            return
        self._trouble = code
        detail = error.details()
        if code == grpc.StatusCode.UNAVAILABLE:
            log.warning("no server answers, trying every second", control=self._address, reason=detail)
        elif code == grpc.StatusCode.FAILED_PRECONDITION:
            log.warning(
                "another governor holds the lease, trying every second",
                reason=detail,
                do="stop it, or give this one its --name to take over",
            )
        elif code == grpc.StatusCode.ABORTED:
            log.warning(
                "a newer start of this governor holds the lease, trying every second",
                reason=detail,
                do="stop one of the two; if the clock was set back, wait until the lease has run out",
            )
        else:
            log.error("the server refuses the limits", code=code.name, reason=detail)


def readings_to_proto(readings: DeviceReadings) -> device_pb2.Readings:
    """Fused readings as the message; what was not measured stays unset."""
    message = device_pb2.Readings(
        **readings.values,  # type: ignore[arg-type]
        sources=readings.sources,
        lost=readings.lost,
        unusable=readings.unusable,
        health=readings.words.get("health"),
        throttle_cause=readings.words.get("throttle_cause"),
        error_codes=readings.error_codes,
        suspect=readings.suspect,
    )
    if readings.age_s is not None:
        message.age.CopyFrom(to_duration(readings.age_s))
    return message
