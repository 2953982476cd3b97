"""DeviceService: what is in force, and why."""

import asyncio
from typing import Any

from coldplate.durations import to_seconds
from coldplate.v1 import device_pb2 as pb
from coldplate.v1 import device_pb2_grpc
from coldplate_server.errors import InvalidRequest, Violation
from coldplate_server.lifecycle import Lifecycle
from coldplate_server.rpc.status_view import StatusView

_DEFAULT_INTERVAL_S, _LEAST_INTERVAL_S, _MOST_INTERVAL_S = 1.0, 0.1, 3600.0


class DeviceServicer(device_pb2_grpc.DeviceServiceServicer):
    def __init__(self, view: StatusView, lifecycle: Lifecycle) -> None:
        self._view = view
        self._lifecycle = lifecycle

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        self._check_device(request.device)
        return pb.GetStatusResponse(status=self._view.service(request.device))

    async def WatchStatus(self, request: pb.WatchStatusRequest, context: Any) -> None:
        self._check_device(request.device)
        interval_s = to_seconds(request.min_interval) if request.HasField("min_interval") else _DEFAULT_INTERVAL_S
        if not _LEAST_INTERVAL_S <= interval_s <= _MOST_INTERVAL_S:
            text = f"is {interval_s:g} s: expected {_LEAST_INTERVAL_S:g} to {_MOST_INTERVAL_S:g} s"
            raise InvalidRequest([Violation("min_interval", text)])
        while not self._lifecycle.stopping.is_set():
            await context.write(pb.WatchStatusResponse(status=self._view.service(request.device)))
            try:
                async with asyncio.timeout(interval_s):
                    await self._lifecycle.stopping.wait()
            except TimeoutError:
                continue

    async def GetLoad(self, request: pb.GetLoadRequest, context: Any) -> pb.GetLoadResponse:
        return pb.GetLoadResponse(load=self._view.load())

    def _check_device(self, name: str) -> None:
        known = sorted({status.device for status in self._view.devices()})
        if name and name not in known:
            raise InvalidRequest(
                [Violation("device", f"there is no device {name[:40]!r}; there are {', '.join(known)}")]
            )
