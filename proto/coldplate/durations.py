"""Seconds to and from protobuf durations."""

from google.protobuf.duration_pb2 import Duration


def to_duration(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def to_seconds(message: Duration) -> float:
    return message.seconds + message.nanos * 1e-9
