"""Writing a safetensors file one tensor at a time, so that memory holds one tensor and not the model.

Layout: https://huggingface.co/docs/safetensors (8 bytes of header length, JSON header, data).
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class StreamedTensor:
    """A tensor to write; ``values`` gives it when its turn comes, BF16 as its bit patterns in uint16."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: Callable[[], NDArray[Any]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def write_safetensors(path: Path, tensors: Sequence[StreamedTensor], progress: Callable[[float], None]) -> None:
    """Write and fsync the file; ``progress`` gets the share written."""
    # Widest first keeps each tensor aligned to its item size.
    ordered = sorted(tensors, key=lambda tensor: -ITEM_BYTES[tensor.dtype])
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    written = 0
    with path.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in ordered:
            values = np.ascontiguousarray(tensor.values())
            if values.nbytes != tensor.nbytes:
                raise AssertionError(f"{tensor.name}: {values.nbytes} bytes for {tensor.nbytes}")
            stream.write(values.data)
            written += tensor.nbytes
            progress(written / end)
        stream.flush()
        os.fsync(stream.fileno())
