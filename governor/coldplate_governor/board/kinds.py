"""The kinds of chips a board can have: what each is, what its sensors tell, and what heats it.

Memory, clocks and rows of telemetry are what `npu-smi` has shown on such parts; bandwidth and compute are from product
pages or derived from them. What marks itself as an estimate is one.
"""

from dataclasses import dataclass, field
from typing import Literal

from coldplate_governor.twin.plant import DUO_CARD, EDGE_MODULE, SINGLE_CARD, CardModel, FirmwareCliff

MIB = 2**20


@dataclass(frozen=True, slots=True)
class WorkLevel:
    """A level of a 310B as `npu-smi` names it, and the AI core's clock in it."""

    name: str
    mhz: float


@dataclass(frozen=True, slots=True)
class ChipKind:
    """One kind of chip.

    ``cards`` are the cards it sits on, with the name of the device profile: full ones, then one for a last chip that
    has no mate. ``power`` says which sensor tells watts: each chip's, only the card's (a 310P), or none. A kind without
    ``shows_clock`` does not tell its clock; one with ``shows_thresholds`` tells where its firmware acts.
    """

    name: str
    chip_name: str
    cards: tuple[tuple[CardModel, str], ...]
    cliff: FirmwareCliff
    rated_mhz: float
    bandwidth_gb_s: float
    fp16_tflops: float
    int8_tops: float
    memory_mib: int
    memory_idle_mib: int
    layout: Literal["A", "B", "B'"]
    power: Literal["chip", "card", "none"]
    npu_ids: tuple[int, int]
    """Of the first card, and from one card to the next: the ids of real ones are not contiguous."""
    health: str = "OK"
    hugepages: tuple[int, int] = (0, 0)
    on_pcie: bool = True
    has_hbm: bool = False
    has_bfloat16: bool = False
    shows_clock: bool = True
    shows_thresholds: bool = False
    levels: tuple[WorkLevel, ...] = field(default=())

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * MIB

    @property
    def memory_idle_bytes(self) -> int:
        return self.memory_idle_mib * MIB


# Together 0.046 degC/W, from two observed rows of a 910B3: 93.6 W at 40 degC, 223.8 W at 46 degC. Capacities estimated.
_SERVER_MODULE = CardModel("910B module", 1, 90.0, 400.0, 0.015, 330.0, 0.031, 4800.0)
_TWO_DIE_MODULE = CardModel("910_93 module", 2, 84.0, 350.0, 0.018, 330.0, 0.02, 7000.0)

# The clock of a 200I board was measured to halve at 86 degC; where it is released again is an estimate.
_EDGE_CLIFF = FirmwareCliff(steps=((86.0, 0.5),), release_celsius=81.0)
_SERVER_CLIFF = FirmwareCliff(steps=((95.0, 0.5), (97.0, 0.25), (99.0, 0.125)), release_celsius=90.0)

KINDS: dict[str, ChipKind] = {
    kind.name: kind
    for kind in (
        ChipKind(
            "310p",
            "310P3",
            ((DUO_CARD, "310p-duo"), (SINGLE_CARD, "310p-pro")),
            FirmwareCliff(),
            rated_mhz=1080.0,
            bandwidth_gb_s=204.0,
            fp16_tflops=70.0,
            int8_tops=140.0,
            memory_mib=44280,
            memory_idle_mib=1529,
            layout="A",
            power="card",
            npu_ids=(2, 2),
        ),
        ChipKind(
            "310b",
            "310B4",
            ((EDGE_MODULE, "310b"),),
            _EDGE_CLIFF,
            rated_mhz=500.0,
            bandwidth_gb_s=25.6,
            fp16_tflops=4.0,
            int8_tops=8.0,
            memory_mib=15609,
            memory_idle_mib=3628,
            layout="A",
            power="none",
            npu_ids=(0, 1),
            health="Alarm",  # what these boards say in good health, too
            hugepages=(15, 15),
            on_pcie=False,
            shows_clock=False,
            shows_thresholds=True,
            levels=(WorkLevel("8T_1.0GHz", 500.0), WorkLevel("4T_1.0GHz", 250.0)),
        ),
        ChipKind(
            "310b1",
            "310B1",
            ((EDGE_MODULE, "310b"),),
            _EDGE_CLIFF,
            rated_mhz=1224.0,
            bandwidth_gb_s=51.0,
            fp16_tflops=10.0,
            int8_tops=20.0,
            memory_mib=10810,
            memory_idle_mib=957,
            layout="A",
            power="chip",
            npu_ids=(0, 1),
            hugepages=(15, 15),
            on_pcie=False,
            shows_clock=False,
            shows_thresholds=True,
            levels=(
                WorkLevel("20T_1.6GHz", 1224.0),
                WorkLevel("8T_1.0GHz", 500.0),
                WorkLevel("16T_1.6GHz", 1000.0),
                WorkLevel("8T_1.6GHz", 500.0),
            ),
        ),
        ChipKind(
            "910b",
            "910B3",
            ((_SERVER_MODULE, "910b"),),
            _SERVER_CLIFF,
            rated_mhz=1800.0,
            bandwidth_gb_s=1600.0,
            fp16_tflops=313.0,
            int8_tops=626.0,  # twice the fp16 rate: an estimate
            memory_mib=65536,
            memory_idle_mib=3380,
            layout="B",
            power="chip",
            npu_ids=(0, 1),
            has_hbm=True,
            has_bfloat16=True,
        ),
        ChipKind(
            "a3",
            "Ascend910",
            ((_TWO_DIE_MODULE, "910b"),),
            _SERVER_CLIFF,
            rated_mhz=1800.0,
            bandwidth_gb_s=1600.0,
            fp16_tflops=313.0,
            int8_tops=626.0,
            memory_mib=65536,
            memory_idle_mib=3172,
            layout="B'",
            power="chip",
            npu_ids=(0, 1),
            has_hbm=True,
            has_bfloat16=True,
        ),
    )
}


def profiles_of(name: str, count: int) -> list[str]:
    """The device profile of each of ``count`` chips; none for a kind that does not exist."""
    return [profile for model, profile in cards_of(name, count) for _ in range(model.chips)][:count]


def cards_of(name: str, count: int) -> list[tuple[CardModel, str]]:
    """The cards that ``count`` chips of a kind sit on, with the profile of their chips."""
    cards: list[tuple[CardModel, str]] = []
    left = count
    while left > 0 and (kind := KINDS.get(name)):
        cards.append(next((pair for pair in kind.cards if pair[0].chips <= left), kind.cards[-1]))
        left -= cards[-1][0].chips
    return cards
