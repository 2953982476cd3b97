"""What grpcurl does with a command line: reflection, JSON in, JSON out."""

import argparse
import json
from typing import Any

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


class Reflection(ProtoReflectionDescriptorDatabase):  # type: ignore[misc]
    """Asks ``version`` (v1 or v1alpha); their messages are the same."""

    def __init__(self, channel: grpc.Channel, version: str) -> None:
        super().__init__(channel)
        self._stub.ServerReflectionInfo = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )


def grpcurl(arguments: list[str], version: str = "v1", address: str | None = None) -> list[Any]:
    """The replies as JSON values, or for ``list`` and ``describe`` the names.

    ``address`` replaces that of a TCP command. A deadline that ends a stream ends it here, too. Raises grpc.RpcError.
    """
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("-plaintext", action="store_true", required=True)
    parser.add_argument("-unix", action="store_true")
    parser.add_argument("-d", default="{}")
    parser.add_argument("-max-time", type=float, default=30.0)
    parser.add_argument("address")
    parser.add_argument("what", nargs="+")
    given = parser.parse_args(arguments)
    target = f"unix:{given.address}" if given.unix else address or given.address
    with grpc.insecure_channel(target) as channel:
        database = Reflection(channel, version)
        pool = descriptor_pool.DescriptorPool(database)
        if given.what == ["list"]:
            return list(database.get_services())
        if given.what[0] == "describe":
            return [_describe(pool, given.what[1])]
        service, _, method = given.what[0].rpartition("/")
        return _call(channel, pool.FindServiceByName(service).methods_by_name[method], given.d, given.max_time)


def _describe(pool: Any, name: str) -> str:
    try:
        return str(pool.FindServiceByName(name).full_name)
    except KeyError:
        return str(pool.FindMessageTypeByName(name).full_name)


def _call(channel: grpc.Channel, method: Any, text: str, timeout_s: float) -> list[Any]:
    request = json_format.Parse(text, message_factory.GetMessageClass(method.input_type)())
    reply = message_factory.GetMessageClass(method.output_type)
    path = f"/{method.containing_service.full_name}/{method.name}"
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    call = make(path, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString)
    answer = call(request, timeout=timeout_s)
    if not method.server_streaming:
        return [json.loads(json_format.MessageToJson(answer))]
    replies = []
    try:
        for message in answer:
            replies.append(json.loads(json_format.MessageToJson(message)))  # noqa: PERF401 - keeps what came
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
    return replies
