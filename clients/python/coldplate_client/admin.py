"""The operator's calls, on the server's control socket."""

from collections.abc import Sequence
from typing import Any, Self

import grpc

from coldplate.limits import NO_LIMITS, Limits
from coldplate.limits_proto import limits_to_proto
from coldplate.paths import control_socket
from coldplate.v1 import admin_pb2, admin_pb2_grpc, device_pb2
from coldplate_client._rpc import SHORT_CALL_TIMEOUT_S
from coldplate_client.channel import channel_options
from coldplate_client.errors import from_rpc_error
from coldplate_client.requests import duration


class AdminClient:
    """``target`` is ``unix:/path``; default the user's control socket (``$COLDPLATE_CONTROL_SOCKET``)."""

    def __init__(self, target: str | None = None) -> None:
        self.target = target or f"unix:{control_socket()}"
        self._channel = grpc.insecure_channel(self.target, options=channel_options(self.target, retries=False))
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def set_limits(self, limits: Limits, device: str = "") -> list[device_pb2.DeviceStatus]:
        """Replace what was set by hand on ``device`` (empty: every device); returns what is in force now."""
        request = admin_pb2.SetOperatorLimitsRequest(device=device, limits=limits_to_proto(limits))
        return list(self._call(self._admin.SetOperatorLimits, request).devices)

    def release_limits(self, device: str = "") -> list[device_pb2.DeviceStatus]:
        """Take back every limit that was set by hand."""
        return self.set_limits(NO_LIMITS, device)

    def drain(self, wait_s: float = 0.0) -> int:
        """Stop taking requests and wait at most ``wait_s`` for those that run; returns how many still do."""
        request = admin_pb2.DrainRequest(wait=duration("wait_s", wait_s))
        return int(self._call(self._admin.Drain, request, SHORT_CALL_TIMEOUT_S + wait_s).running)

    def resume(self) -> None:
        """Take requests again."""
        self._call(self._admin.Resume, admin_pb2.ResumeRequest())

    def abort(self, request_ids: Sequence[str] = (), *, all_requests: bool = False) -> tuple[list[str], list[str]]:
        """End running requests; returns those that were ended and those that were not running."""
        reply = self._call(self._admin.Abort, admin_pb2.AbortRequest(request_ids=request_ids, all=all_requests))
        return list(reply.aborted), list(reply.unknown)

    def server_info(self) -> admin_pb2.GetServerInfoResponse:
        return self._call(self._admin.GetServerInfo, admin_pb2.GetServerInfoRequest())  # type: ignore[no-any-return]

    def _call(self, method: Any, request: Any, timeout_s: float = SHORT_CALL_TIMEOUT_S) -> Any:
        try:
            return method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
