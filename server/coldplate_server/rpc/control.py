"""ControlService: the governor's limits come in, load and what is in force go out."""

from typing import Any

import grpc
import structlog

from coldplate.durations import to_seconds
from coldplate.limits_proto import limits_from_proto
from coldplate.v1 import control_pb2 as pb
from coldplate.v1 import control_pb2_grpc, device_pb2
from coldplate_server.dispatcher import Dispatcher
from coldplate_server.errors import InvalidRequest, Violation
from coldplate_server.limit_book import Directive, LeaseRefused, LimitBook, StaleCall
from coldplate_server.rpc.status_view import StatusView

log = structlog.get_logger()

_LONGEST_NAME = 100
_LEAST_RETRY_S, _MOST_RETRY_S = 0.5, 3600.0


class ControlServicer(control_pb2_grpc.ControlServiceServicer):
    def __init__(self, limits: LimitBook, dispatcher: Dispatcher, view: StatusView) -> None:
        self._limits = limits
        self._dispatcher = dispatcher
        self._view = view

    async def ApplyLimits(self, request: pb.ApplyLimitsRequest, context: Any) -> pb.ApplyLimitsResponse:
        if not 0 < len(request.governor) <= _LONGEST_NAME:
            raise InvalidRequest([Violation("governor", f"expected a name of 1 to {_LONGEST_NAME} characters")])
        directives = {entry.device: _directive(index, entry) for index, entry in enumerate(request.devices)}
        before = self._limits.governor()
        try:
            unknown = self._limits.apply(
                request.governor, request.epoch, request.seq, to_seconds(request.ttl), directives
            )
        except ValueError as error:
            raise InvalidRequest([Violation("ttl", str(error))]) from None
        except LeaseRefused as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except StaleCall as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        if (before.state, before.name, before.epoch) != ("governed", request.governor, request.epoch):
            log.info("governor holds the lease", governor=request.governor, epoch=request.epoch, before=before.state)
        self._dispatcher.tick()
        return pb.ApplyLimitsResponse(
            devices=self._view.devices(), load=self._view.load(), unknown_devices=sorted(unknown)
        )


def _directive(index: int, entry: pb.DeviceDirective) -> Directive:
    try:
        limits = limits_from_proto(entry.limits)
    except ValueError as error:
        raise InvalidRequest([Violation(f"devices[{index}].limits", str(error))]) from None
    readings: device_pb2.Readings | None = entry.readings if entry.HasField("readings") else None
    explanation = entry.explanation if entry.HasField("explanation") else None
    return Directive(limits, entry.mode, tuple(entry.reasons), readings, _retry_after_s(entry), explanation)


def _retry_after_s(entry: pb.DeviceDirective) -> float | None:
    """An estimate, so an odd one is brought into range rather than refused."""
    if not entry.HasField("retry_after"):
        return None
    return min(max(to_seconds(entry.retry_after), _LEAST_RETRY_S), _MOST_RETRY_S)
