"""Tensors of a model directory: one ``model.safetensors``, or shards named by ``model.safetensors.index.json``.

Every file's header is read and held against the file's size before anything is loaded, so that a cut download, a
missing shard or a foreign tensor is refused by name at once.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coldplate_engine.runner import ModelError, ReportProgress
from coldplate_engine.weights.config import read_json
from coldplate_engine.weights.read_ahead import ReadAhead
from coldplate_engine.weights.stored import StoredTensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TORCH_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_HEADER_LIMIT_BYTES = 100_000_000  # the format's own bound


class SafetensorsDirectory:
    """The tensors of one model directory. Raises ``ModelError`` naming file and reason."""

    def __init__(self, directory: Path, progress: ReportProgress) -> None:
        self.directory = directory
        self._progress = progress
        self._headers = {path: read_header(path) for path in _weight_files(directory)}
        self.tensors = {
            name: stored for path, header in self._headers.items() for name, stored in _stored(path, header).items()
        }
        self._total = sum(stored.nbytes for stored in self.tensors.values())
        self._reader = ReadAhead(self.tensors)
        self.clock = self._reader.clock

    def close(self) -> None:
        self._reader.close()

    def read(self, name: str) -> Tensor:
        """The tensor as it is stored, in memory of its own."""
        stored = self.tensors[name]
        data = self._reader.take(name).view(TORCH_TYPES[stored.kind]).view(stored.shape)
        self._progress("weights", min(1.0, self.clock.bytes / max(1, self._total)))
        return data

    def revision(self) -> str:
        """A short hash that changes with the configuration, the tokenizer, the template and the weight files.

        Weight files count with their name, size and header, not with all their bytes: hashing gigabytes would be the
        slowest part of a start.
        """
        digest = hashlib.sha256()
        for path in sorted(self.directory.iterdir()):
            if path.suffix in (".json", ".jinja", ".model", ".txt") and path.is_file():
                digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
        for path, header in sorted(self._headers.items()):
            digest.update(f"{path.name}\0{path.stat().st_size}\0{json.dumps(header, sort_keys=True)}\0".encode())
        return digest.hexdigest()[:12]


def read_header(path: Path) -> dict[str, Any]:
    """A safetensors file's header, proven against the file's size. Raises ``ModelError``."""
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= _HEADER_LIMIT_BYTES:
                raise ModelError(f"{path}: not a safetensors file")
            raw = file.read(length)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    size = path.stat().st_size
    try:
        header = json.loads(raw)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        if not all(isinstance(entry["shape"], list) for name, entry in header.items() if name != "__metadata__"):
            raise TypeError
        expected = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        reason = "cut short inside its header" if len(raw) < length else "its header is damaged"
        raise ModelError(f"{path}: not a whole safetensors file: {reason}") from None
    if size != expected:
        raise ModelError(f"{path}: not a whole safetensors file: {size} bytes, its header promises {expected}")
    return header  # type: ignore[no-any-return]


def _stored(path: Path, header: dict[str, Any]) -> dict[str, StoredTensor]:
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    size = path.stat().st_size
    data_start = size - max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    found = {}
    for name, entry in entries.items():
        try:
            (start, end), shape, kind = entry["data_offsets"], tuple(entry["shape"]), entry["dtype"]
            known = TORCH_TYPES.get(kind)
            fits = known is None or math.prod(shape) * known.itemsize == end - start
        except (ValueError, KeyError, TypeError):
            fits = False
        if not fits or not 0 <= start <= end:
            raise ModelError(f"{path}: not a whole safetensors file: its entry for tensor {name} is damaged")
        found[name] = StoredTensor(path, kind, shape, data_start + start, end - start)
    return found


def _weight_files(directory: Path) -> Iterable[Path]:
    index = directory / INDEX_FILE
    if not index.exists():
        single = directory / SINGLE_FILE
        if not single.exists():
            others = sorted(p.name for p in directory.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf"))
            found = f"; found {', '.join(others[:3])}, which must be converted first" if others else ""
            raise ModelError(f"{directory}: neither {SINGLE_FILE} nor {INDEX_FILE} is there{found}")
        return [single]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise ModelError(f"{index}: weight_map must map tensor names to file names")
    names = sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name:
            raise ModelError(f"{index}: {name!r} is not a file name in this directory")
        if not (directory / name).exists():
            raise ModelError(f"{directory / name}: missing, but {INDEX_FILE} names it")
    return [directory / name for name in names]
