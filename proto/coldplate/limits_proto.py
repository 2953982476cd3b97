"""Limits to and from their protobuf message."""

from typing import Any

from coldplate.limits import FIELD_NAMES, Limits
from coldplate.v1 import device_pb2


def limits_from_proto(message: device_pb2.DeviceLimits) -> Limits:
    """Raises ValueError as ``Limits`` does."""
    values: dict[str, Any] = {name: getattr(message, name) for name in FIELD_NAMES if message.HasField(name)}
    return Limits(**values)


def limits_to_proto(limits: Limits) -> device_pb2.DeviceLimits:
    return device_pb2.DeviceLimits(**limits.set_fields())
