"""Masks of tokens on rows of logits."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

FORBIDDEN = np.float32(-np.inf)


def keep(row: NDArray[np.float32], bits: NDArray[np.uint8], also: Iterable[int] = ()) -> None:
    """Forbid in place every token of ``row`` whose bit is not set, and those beyond the bits; ``also`` stay."""
    kept = {token: row[token] for token in also}
    size = min(len(row), 8 * len(bits))
    allowed = np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)
    np.copyto(row[:size], FORBIDDEN, where=~allowed)
    row[size:] = FORBIDDEN
    for token, value in kept.items():
        row[token] = value
