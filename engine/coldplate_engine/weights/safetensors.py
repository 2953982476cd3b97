"""Tensors of a model directory: one ``model.safetensors``, or shards named by ``model.safetensors.index.json``.

Every file's header is read and held against the file's size before anything is loaded, so that a cut download, a
missing shard or a foreign tensor is refused by name at once.
"""

import hashlib
import json
import struct
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from coldplate_engine.runner import ModelError, ReportProgress
from coldplate_engine.weights.config import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOAT_KINDS = ("F64", "F32", "F16", "BF16")
_HEADER_LIMIT_BYTES = 100_000_000  # the format's own bound


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies and what it is: ``kind`` is the format's dtype word."""

    file: Path
    kind: str
    shape: tuple[int, ...]


class SafetensorsDirectory:
    """The tensors of one model directory.

    ``read`` gives a private copy (the files are mapped: a view would fault when a file is replaced under a running
    worker). Raises ``ModelError`` naming file and reason.
    """

    def __init__(self, directory: Path, progress: ReportProgress) -> None:
        self.directory = directory
        self._progress = progress
        self._headers = {path: read_header(path) for path in _weight_files(directory)}
        self.tensors = {
            name: StoredTensor(path, entry["dtype"], tuple(entry["shape"]))
            for path, header in self._headers.items()
            for name, entry in header.items()
            if name != "__metadata__"
        }
        self._taken = 0
        self._open: dict[Path, Any] = {}
        self._files = ExitStack()

    def close(self) -> None:
        self._open.clear()
        self._files.close()

    def read(self, name: str) -> Tensor:
        """The tensor as it is stored."""
        tensor: Tensor = self._file(self.tensors[name].file).get_tensor(name).clone()
        self._taken += 1
        self._progress("weights", min(1.0, self._taken / len(self.tensors)))
        return tensor

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

    def _file(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = self._files.enter_context(safe_open(path, framework="pt"))
        return self._open[path]


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
