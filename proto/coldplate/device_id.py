"""Names of devices: ``cpu``, ``npu:0``, ``npu:1`` …"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """A kind of device and, except for the CPU, its logical index."""

    kind: str
    index: int | None = None

    @classmethod
    def parse(cls, name: str) -> "DeviceId":
        """Read ``cpu`` or ``npu:N``. Raises ValueError with the name and the forms allowed."""
        kind, _, index = name.partition(":")
        if kind == "cpu" and not index:
            return cls("cpu")
        if kind == "npu" and index.isascii() and index.isdigit():
            return cls("npu", int(index))
        raise ValueError(f"unknown device {name[:40]!r}: expected 'cpu' or 'npu:N', such as 'npu:0'")

    def __str__(self) -> str:
        return self.kind if self.index is None else f"{self.kind}:{self.index}"
