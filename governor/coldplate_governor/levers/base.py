"""What a frequency lever is: a device's clock, set to one of a few levels and read back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_CLEARLY_NEARER = 0.02  # a wish between two levels must not make the clock go to and fro


class LeverError(Exception):
    """The lever cannot be used, or a setting did not take effect; the text says why."""


@dataclass(frozen=True, slots=True)
class Level:
    """One setting of a clock: the share of the rated clock it leaves, in (0, 1], and what it is called."""

    share: float
    name: str


class FrequencyLever(Protocol):
    """One way to set one device's clock. Every call may block; it runs in the lever process, which can be killed."""

    name: str

    def original(self) -> str:
        """What is set now, as a word that ``restore`` takes. Raises LeverError."""
        ...

    def probe(self, original: str) -> tuple[Level, ...]:
        """Prove, by setting what is set already and reading it back, that the clock can be set.

        Returns the levels that may be used, fastest first, none of them above ``original``. Raises LeverError.
        """
        ...

    def set(self, level: Level) -> float:
        """Set a level and read it back; returns the share in force. Raises LeverError when it did not take effect."""
        ...

    def restore(self, original: str) -> None:
        """Put back what was set before. Raises LeverError when it did not take effect."""
        ...


def nearest(levels: Sequence[Level], share: float, current: Level | None = None) -> Level:
    """The level nearest to the wanted share, the slower of two equally near. ``levels`` is not empty.

    ``current`` stays unless another is clearly nearer.
    """
    best = min(levels, key=lambda level: (abs(level.share - share), level.share))
    if current is None or current not in levels:
        return best
    gain = abs(current.share - share) - abs(best.share - share)
    return best if gain >= _CLEARLY_NEARER else current
