"""From loading to serving to drained, and the health that others see of it."""

import asyncio

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio

from coldplate_server.catalog import Catalog
from coldplate_server.dispatcher import Dispatcher
from coldplate_server.workers.fleet import Fleet, Worker

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

# Ready while at least one model can be served.
READINESS = ("coldplate.v1.GenerationService",)
# They answer without any device.
ALWAYS = (
    "",
    "coldplate.v1.TokenService",
    "coldplate.v1.ModelService",
    "coldplate.v1.DeviceService",
)


class Lifecycle:
    """Keeps health true.

    ``""`` is liveness and ignores modes; the named services, ``model/NAME`` and ``device/ID`` are readiness.
    """

    def __init__(
        self, health: health_aio.HealthServicer, catalog: Catalog, fleet: Fleet, dispatcher: Dispatcher
    ) -> None:
        self.stopping = asyncio.Event()
        self.ready = asyncio.Event()
        self._health = health
        self._catalog = catalog
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._told: dict[str, int] = {}

    async def refresh(self) -> None:
        """Tell health what holds now."""
        able = {name: any(self._takes(worker) for worker in self._fleet.of_model(name)) for name in self._catalog.names}
        states = {f"model/{name}": ok for name, ok in able.items()}
        for worker in self._fleet.workers:
            for device in worker.devices:
                states[f"device/{device}"] = states.get(f"device/{device}", False) or self._takes(worker)
        states.update(dict.fromkeys(READINESS, any(able.values())))
        if states[READINESS[0]]:
            self.ready.set()
        for name, ok in states.items():
            await self._tell(name, ok)
        for name in ALWAYS:
            await self._tell(name, True)

    def _takes(self, worker: Worker) -> bool:
        open_for_more = not self._dispatcher.draining and not self.stopping.is_set()
        return open_for_more and worker.link.ready and self._fleet.limits_of(worker).admit is not False

    async def _tell(self, name: str, ok: bool) -> None:
        status = _SERVING if ok else _NOT_SERVING
        if self._told.get(name) != status:
            self._told[name] = status
            await self._health.set(name, status)
