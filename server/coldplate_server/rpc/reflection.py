"""Server reflection, v1 and v1alpha: some tools ask for one, some for the other."""

from collections.abc import Iterable

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

_V1_NAME = "grpc.reflection.v1.ServerReflection"


def add_reflection(server: grpc.aio.Server, service_names: Iterable[str]) -> None:
    """Serve descriptions of ``service_names``, of health and of reflection itself.

    The messages of both versions are the same on the wire, so one servicer answers both.
    """
    names = [*service_names, "grpc.health.v1.Health", reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server)
    servicer = reflection.aio.ReflectionServicer(names)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = {"ServerReflectionInfo": handler}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_V1_NAME, handlers),))
