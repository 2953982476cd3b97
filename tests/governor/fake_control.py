"""A ControlService that records what it is told, on a Unix socket."""

import threading
import time
from collections.abc import Callable
from concurrent import futures
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from coldplate.v1 import control_pb2, control_pb2_grpc
from support.processes import until

Request = control_pb2.ApplyLimitsRequest
Response = control_pb2.ApplyLimitsResponse


class FakeControl(control_pb2_grpc.ControlServiceServicer):
    """Accepts everything, unless ``refuse`` is set to a status code; knows the devices in ``known``."""

    def __init__(self, folder: Path, known: tuple[str, ...] = ("cpu", "npu:0")) -> None:
        self.address = f"unix:{folder}/control.sock"
        self.requests: list[Request] = []
        self.arrived_s: list[float] = []
        self.known = known
        self.refuse: grpc.StatusCode | None = None
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None

    def ApplyLimits(self, request: Request, context: grpc.ServicerContext) -> Response:  # noqa: N802
        with self._lock:
            self.requests.append(request)
            self.arrived_s.append(time.monotonic())
        if self.refuse is not None:
            context.abort(self.refuse, "governor 'other' holds the lease for 4 s more")
        return Response(unknown_devices=[item.device for item in request.devices if item.device not in self.known])

    def gaps_s(self) -> list[float]:
        """Seconds between each call and the one before it."""
        return [later - earlier for earlier, later in pairwise(self.arrived_s)]

    def wait_for(self, what: str, test: Callable[[Request], bool], timeout_s: float = 20.0, after: int = 0) -> Request:
        """The first request from number ``after`` on that passes ``test``."""
        return until(what, lambda: next((item for item in self.requests[after:] if test(item)), None), timeout_s)

    def __enter__(self) -> Self:
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        control_pb2_grpc.add_ControlServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.stop(0).wait(5)
