"""Names of devices: ``cpu``, ``npu:0``, ``npu:1`` …, and of groups of them: ``npu:0-3``, ``npu:0+2``."""

from dataclasses import dataclass

_LARGEST_GROUP = 64
MODELLED = "modelled"


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


def parse_group(name: str) -> list[DeviceId]:
    """Read one device, a range such as ``npu:0-3``, or several such as ``npu:0+2+5``; indices go upwards.

    Raises ValueError with the name and the forms allowed.
    """
    kind, _, indices = name.partition(":")
    if kind != "npu" or not ("-" in indices or "+" in indices):
        return [DeviceId.parse(name)]
    found: list[int] = []
    for part in indices.split("+"):
        first, dash, last = part.partition("-")
        if not (first.isascii() and first.isdigit()) or (dash and not (last.isascii() and last.isdigit())):
            raise ValueError(f"unknown devices {name[:40]!r}: expected such as 'npu:0', 'npu:0-3' or 'npu:0+2'")
        found.extend(range(int(first), int(last) + 1) if dash else [int(first)])
    if not found or found != sorted(set(found)) or len(found) > _LARGEST_GROUP:
        raise ValueError(f"devices {name[:40]!r}: expected at most {_LARGEST_GROUP} indices, going upwards")
    return [DeviceId("npu", index) for index in found]


def name_in_spec(spec: str) -> str:
    """The device, or group, that a worker's device is called by.

    That is ``npu:0`` of ``sim:unix:/b.sock#npu:0``, with ``,modelled`` behind it or not, and ``cpu`` of
    ``fault:oom@5,cpu``.
    """
    return split_modelled(spec)[0].rpartition(",")[2].rpartition("#")[2]


def split_modelled(spec: str) -> tuple[str, str | None]:
    """A worker's device without ``,modelled`` or ``,modelled=NAME`` at its end, and what it is modelled as.

    None is not modelled, an empty name the model's own size.
    """
    before, comma, last = spec.rpartition(",")
    kind, _, name = last.partition("=")
    return (before, name) if comma and kind == MODELLED else (spec, None)
