"""AdminService: what an operator does by hand."""

import os
from typing import Any

import structlog

from coldplate import __version__
from coldplate.durations import to_duration, to_seconds
from coldplate.limits_proto import limits_from_proto
from coldplate.v1 import admin_pb2 as pb
from coldplate.v1 import admin_pb2_grpc
from coldplate_server.dispatcher import Dispatcher
from coldplate_server.errors import Aborted, FeatureUnimplemented, InvalidRequest, Violation
from coldplate_server.lifecycle import Lifecycle
from coldplate_server.limit_book import LimitBook
from coldplate_server.rpc.status_view import StatusView
from coldplate_server.settings import ServerSettings
from coldplate_server.workers.fleet import Fleet, Worker

log = structlog.get_logger()

_LONGEST_DRAIN_WAIT_S = 3600.0
_UNSERVED_LIMITS = ("max_encoder_tokens",)


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    def __init__(
        self,
        settings: ServerSettings,
        limits: LimitBook,
        dispatcher: Dispatcher,
        fleet: Fleet,
        lifecycle: Lifecycle,
        view: StatusView,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._lifecycle = lifecycle
        self._view = view

    async def SetOperatorLimits(
        self, request: pb.SetOperatorLimitsRequest, context: Any
    ) -> pb.SetOperatorLimitsResponse:
        if request.device and request.device not in self._limits.devices:
            known = ", ".join(self._limits.devices)
            raise InvalidRequest(
                [Violation("device", f"there is no device {request.device[:40]!r}; there are {known}")]
            )
        for name in _UNSERVED_LIMITS:
            if request.limits.HasField(name):
                raise FeatureUnimplemented(f"limits.{name}: this version serves nothing that it would limit")
        try:
            limits = limits_from_proto(request.limits)
        except ValueError as error:
            raise InvalidRequest([Violation("limits", str(error))]) from None
        self._limits.set_operator(request.device, limits)
        log.info("operator limits set", device=request.device or "all", limits=limits.set_fields() or "released")
        self._dispatcher.tick()
        await self._lifecycle.refresh()
        return pb.SetOperatorLimitsResponse(devices=self._view.devices(request.device))

    async def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortResponse:
        if request.all and request.request_ids:
            raise InvalidRequest([Violation("all", "give either all or request_ids, not both")])
        journal = self._dispatcher.journal
        ids = journal.request_ids if request.all else list(request.request_ids)
        response = pb.AbortResponse()
        for request_id in ids:
            records = journal.get(request_id)
            if not records:
                response.unknown.append(request_id)
                continue
            delivered = sum(record.delivered for record in records)
            error = Aborted(f"ended by an operator after {delivered} tokens", delivered_tokens=delivered)
            for record in records:
                self._dispatcher.abort(record, error)
            response.aborted.append(request_id)
        log.info("operator aborted requests", aborted=len(response.aborted), unknown=len(response.unknown))
        return response

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
        wait_s = to_seconds(request.wait)
        if not 0 <= wait_s <= _LONGEST_DRAIN_WAIT_S:
            raise InvalidRequest([Violation("wait", f"is {wait_s:g} s: expected 0 to {_LONGEST_DRAIN_WAIT_S:g} s")])
        self._dispatcher.draining = True
        await self._lifecycle.refresh()
        log.info("draining by hand", running=len(self._dispatcher.journal))
        await self._dispatcher.wait_idle(wait_s)
        return pb.DrainResponse(running=len(self._dispatcher.journal))

    async def Resume(self, request: pb.ResumeRequest, context: Any) -> pb.ResumeResponse:
        if not self._lifecycle.stopping.is_set():
            self._dispatcher.draining = False
            await self._lifecycle.refresh()
            log.info("taking requests again")
        return pb.ResumeResponse()

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.GetServerInfoResponse:
        return pb.GetServerInfoResponse(
            version=__version__,
            uptime=to_duration(self._view.uptime_s),
            public_address=self._settings.listen,
            metrics_address=self._settings.metrics_listen,
            pid=os.getpid(),
            workers=[_worker_info(worker) for worker in self._fleet.workers],
        )

    async def ReloadConfig(self, request: pb.ReloadConfigRequest, context: Any) -> pb.ReloadConfigResponse:
        raise FeatureUnimplemented("ReloadConfig is not served by this version: restart with the new settings")

    async def SetLogLevel(self, request: pb.SetLogLevelRequest, context: Any) -> pb.SetLogLevelResponse:
        raise FeatureUnimplemented("SetLogLevel is not served by this version: restart with --log-level")

    async def StartProfile(self, request: pb.StartProfileRequest, context: Any) -> pb.StartProfileResponse:
        raise FeatureUnimplemented("StartProfile is not served by this version")

    async def StopProfile(self, request: pb.StopProfileRequest, context: Any) -> pb.StopProfileResponse:
        raise FeatureUnimplemented("StopProfile is not served by this version")


def _worker_info(worker: Worker) -> pb.WorkerInfo:
    hello = worker.link.hello
    return pb.WorkerInfo(
        name=worker.spec.name,
        address=worker.link.address,
        spawned=worker.process is not None,
        pid=(worker.process.pid or 0) if worker.process else (hello.pid if hello else 0),
        engine=hello.engine if hello else "",
        model=worker.spec.model.name,
        devices=worker.devices,
        connected=worker.link.ready,
        restarts=worker.restarts,
        detail=worker.failure or worker.last_exit or worker.link.trouble or "",
    )
