"""Which governed devices share a heatsink, and so one thermal budget."""

from collections.abc import Sequence

from coldplate.device_id import DeviceId
from coldplate_governor.settings import GovernedDevice


def heatsinks(governed: Sequence[GovernedDevice], named: Sequence[str] = ()) -> list[list[GovernedDevice]]:
    """Group the devices: as ``named`` (such as "npu:0,npu:1"), the others by the chips per heatsink of their profile.

    Chips 2k and 2k+1 of a card with two chips sit together. Raises ValueError that names what does not fit.
    """
    by_id = {item.device: item for item in governed}
    groups: list[list[GovernedDevice]] = []
    placed: set[DeviceId] = set()
    for text in named:
        group = [_governed(text, part, by_id) for part in text.split(",")]
        for item in group:
            if item.device in placed:
                raise ValueError(f"heatsink {text!r}: {item.device} is on a heatsink already")
            placed.add(item.device)
            if item.profile != group[0].profile:
                profiles = f"{group[0].profile.name!r} and {item.profile.name!r}"
                raise ValueError(f"heatsink {text!r}: profiles {profiles} differ: give its devices one profile")
        groups.append(group)
    shared: dict[tuple[str, int], list[GovernedDevice]] = {}
    for item in governed:
        chips = item.profile.heatsink.chips_per_heatsink
        if item.device in placed:
            continue
        if item.device.index is None or chips == 1:
            groups.append([item])
        else:
            shared.setdefault((item.profile.name, item.device.index // chips), []).append(item)
    return sorted([*groups, *shared.values()], key=lambda group: str(group[0].device))


def _governed(text: str, part: str, by_id: dict[DeviceId, GovernedDevice]) -> GovernedDevice:
    try:
        device = DeviceId.parse(part.strip())
    except ValueError as error:
        raise ValueError(f"heatsink {text!r}: {error}") from error
    if device not in by_id:
        raise ValueError(f"heatsink {text!r}: {device} is not governed: add --device {device}")
    return by_id[device]
