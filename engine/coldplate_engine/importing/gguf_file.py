"""Reading and checking a GGUF file: metadata, the tensor table and tensor values.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The header is read here and not with gguf's own
reader, which takes 5 s for a vocabulary of 49,000 tokens (this one 0.2 s) and shows a cut file as an IndexError. The
block formats are left to gguf.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from coldplate_engine.importing.errors import ImportFailed

T = TypeVar("T", int, float, str, bool)

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_NESTING = 4
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
_UNQUANTISED: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_QUANTISED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
TENSOR_TYPES = (*_UNQUANTISED, *_QUANTISED)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table. ``shape`` is row-major, as in torch; ``offset`` is from the start of the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def stored_dtype(self) -> str:
        """The safetensors dtype that holds every value exactly: a block format's scales times codes need float32."""
        return self.type if self.type in _UNQUANTISED else "F32"


class GgufFile:
    """A GGUF file whose header and size have been checked.

    Raises ImportFailed naming the file and what is wrong with it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            with path.open("rb") as stream:
                self.size = path.stat().st_size
                _Header(self, _Reader(path, stream, self.size)).read()
        except OSError as error:
            raise ImportFailed(path, error.strerror or str(error)) from error

    def require(self, key: str, kind: type[T]) -> T:
        """The metadata value under ``key``. Raises ImportFailed when it is missing or of another kind."""
        if key not in self.metadata:
            raise ImportFailed(self.path, f"the metadata key {key} is missing")
        return self._checked(key, kind)

    def get(self, key: str, default: T) -> T:
        """The metadata value under ``key``, of the default's kind, or the default."""
        return self._checked(key, type(default)) if key in self.metadata else default

    def strings(self, key: str) -> list[str]:
        """The metadata array of strings under ``key``."""
        value = self._array(key)
        if not all(isinstance(item, str) for item in value):
            raise ImportFailed(self.path, f"the metadata key {key} is no array of strings")
        return value

    def numbers(self, key: str) -> list[Any]:
        """The metadata array of numbers under ``key``."""
        value = self._array(key)
        if not all(isinstance(item, int | float) for item in value):
            raise ImportFailed(self.path, f"the metadata key {key} is no array of numbers")
        return value

    def raw(self, tensor: GgufTensor) -> NDArray[Any]:
        """The tensor's bytes as they are in the file."""
        try:
            data = np.fromfile(self.path, dtype=np.uint8, count=tensor.nbytes, offset=tensor.offset)
        except OSError as error:
            raise ImportFailed(self.path, error.strerror or str(error)) from error
        if data.size != tensor.nbytes:
            raise ImportFailed(self.path, f"was cut while being read: tensor {tensor.name} is incomplete")
        return data

    def values(self, tensor: GgufTensor) -> NDArray[Any]:
        """The tensor's values in ``stored_dtype`` and ``shape``; BF16 as its bit patterns in uint16."""
        data = self.raw(tensor)
        if tensor.type in _UNQUANTISED:
            return data.view(_UNQUANTISED[tensor.type]).reshape(tensor.shape)
        kind = GGMLQuantizationType[tensor.type]
        block, block_bytes = GGML_QUANT_SIZES[kind]
        rows = data.reshape(-1, tensor.shape[-1] // block * block_bytes)
        with np.errstate(all="ignore"):  # an infinite scale is the file's own, not an error here
            values: NDArray[Any] = dequantize(rows, kind).astype(np.float32, copy=False)
        return values.reshape(tensor.shape)

    def _checked(self, key: str, kind: type[T]) -> T:
        value = self.metadata[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            shown = f"an array of {len(value)}" if isinstance(value, list) else repr(value)[:60]
            raise ImportFailed(self.path, f"the metadata key {key} is {shown}: expected {kind.__name__}")
        return value

    def _array(self, key: str) -> list[Any]:
        if key not in self.metadata:
            raise ImportFailed(self.path, f"the metadata key {key} is missing")
        value = self.metadata[key]
        if not isinstance(value, list):
            raise ImportFailed(self.path, f"the metadata key {key} is {value!r:.60}: expected an array")
        return value


class _Reader:
    """Bounded reads: nothing is read or allocated past the end of the file."""

    def __init__(self, path: Path, stream: Any, size: int) -> None:
        self.path, self._stream, self.size = path, stream, size
        self.position = 0

    def take(self, count: int) -> bytes:
        if count > self.size - self.position:
            raise ImportFailed(
                self.path,
                f"is cut: its header needs at least {self.position + count} bytes, the file has {self.size}",
            )
        self.position += count
        data: bytes = self._stream.read(count)
        return data

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        at = self.position
        try:
            return self.take(self.number("<Q")).decode()
        except UnicodeDecodeError as error:
            raise ImportFailed(self.path, f"is damaged: the text at byte {at} is not UTF-8") from error


class _Header:
    """The header's parts in the order of the file."""

    def __init__(self, file: GgufFile, reader: _Reader) -> None:
        self._file, self._reader = file, reader

    def read(self) -> None:
        tensor_count, key_count = self._preamble()
        for _ in range(key_count):
            key = self._reader.string()
            self._file.metadata[key] = self._value(self._reader.number("<I"))
        self._refuse_parts()
        entries = [self._tensor_entry() for _ in range(tensor_count)]
        alignment = self._alignment()
        data_start = math.ceil(self._reader.position / alignment) * alignment
        for name, kind, shape, offset in entries:
            if name in self._file.tensors:
                raise self._damaged(f"the tensor {name[:80]} is listed twice")
            self._file.tensors[name] = self._tensor(name, kind, shape, data_start + offset)
        self._check_size()

    def _preamble(self) -> tuple[int, int]:
        path, reader = self._file.path, self._reader
        magic = reader.take(min(4, reader.size))
        if magic != b"GGUF":
            start = magic + reader.take(min(60, reader.size - len(magic)))
            is_page = start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml", b"<head"))
            found = "a web page, perhaps an error page saved by a download" if is_page else f"{magic!r} in its place"
            raise ImportFailed(path, f"is not a GGUF file: it does not begin with 'GGUF' ({found})")
        version = reader.number("<I")
        if version not in _VERSIONS:
            if version & 0xFFFF == 0:
                raise ImportFailed(path, "is a big-endian GGUF file: only little-endian files are supported")
            raise ImportFailed(path, f"has GGUF version {version}: supported are versions 2 and 3")
        return reader.number("<Q"), reader.number("<Q")

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind in _NUMBERS:
            return self._number_array(kind, 1)[0]
        if kind == _BOOL:
            return self._reader.take(1) != b"\0"
        if kind == _STRING:
            return self._reader.string()
        if kind == _ARRAY and depth < _MAX_NESTING:
            item, count = self._reader.number("<I"), self._reader.number("<Q")
            if item in _NUMBERS:
                return self._number_array(item, count)
            return [self._value(item, depth + 1) for _ in range(count)]
        raise self._damaged(f"unknown kind of metadata value {kind} at byte {self._reader.position}")

    def _number_array(self, kind: int, count: int) -> list[Any]:
        dtype = np.dtype(_NUMBERS[kind])
        numbers: list[Any] = np.frombuffer(self._reader.take(dtype.itemsize * count), dtype).tolist()
        return numbers

    def _tensor_entry(self) -> tuple[str, int, tuple[int, ...], int]:
        reader = self._reader
        name, dimensions = reader.string(), reader.number("<I")
        if not 1 <= dimensions <= 4:
            raise self._damaged(f"the tensor {name[:80]} has {dimensions} dimensions")
        sizes = struct.unpack(f"<{dimensions}Q", reader.take(8 * dimensions))
        return name, reader.number("<I"), sizes[::-1], reader.number("<Q")

    def _tensor(self, name: str, kind: int, shape: tuple[int, ...], offset: int) -> GgufTensor:
        try:
            known = GGMLQuantizationType(kind)
        except ValueError:
            raise self._unsupported_type(name, str(kind)) from None
        if known.name not in TENSOR_TYPES:
            raise self._unsupported_type(name, known.name)
        block, block_bytes = GGML_QUANT_SIZES[known]
        if 0 in shape or shape[-1] % block:
            raise self._damaged(f"the tensor {name[:80]} has shape {shape}, which {known.name} cannot hold")
        return GgufTensor(name, known.name, shape, offset, math.prod(shape) // block * block_bytes)

    def _unsupported_type(self, name: str, kind: str) -> ImportFailed:
        return ImportFailed(
            self._file.path,
            f"the tensor {name[:80]} has the unsupported type {kind}: supported are {', '.join(TENSOR_TYPES)}",
        )

    def _alignment(self) -> int:
        alignment = self._file.get("general.alignment", _DEFAULT_ALIGNMENT)
        if alignment <= 0 or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment is {alignment}: expected a power of two")
        return alignment

    def _check_size(self) -> None:
        needed = max((tensor.offset + tensor.nbytes for tensor in self._file.tensors.values()), default=0)
        if needed > self._file.size:
            raise ImportFailed(
                self._file.path, f"is cut: its header says {needed} bytes, the file has {self._file.size}"
            )

    def _refuse_parts(self) -> None:
        parts = self._file.get("split.count", 1)
        if parts > 1:
            part = self._file.get("split.no", 0) + 1
            raise ImportFailed(
                self._file.path, f"is part {part} of {parts}: join the parts first (llama-gguf-split --merge)"
            )

    def _damaged(self, reason: str) -> ImportFailed:
        return ImportFailed(self._file.path, f"is damaged: {reason}")
