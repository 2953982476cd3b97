"""A GGUF file as a checkpoint: configuration and tensors under the names of the Hugging Face layout."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coldplate_engine.importing.errors import ImportFailed
from coldplate_engine.importing.gguf_checkpoint import Weight as NamedTensor
from coldplate_engine.importing.gguf_families import read_checkpoint
from coldplate_engine.importing.gguf_file import GgufFile, GgufTensor
from coldplate_engine.importing.gguf_tokenizer import read_tokenizer
from coldplate_engine.runner import ModelError, ReportProgress
from coldplate_engine.weights.gguf_blocks import decode_blocks
from coldplate_engine.weights.quantized import Int4Weight, Int8Weight, take_rows
from coldplate_engine.weights.read_ahead import ReadAhead
from coldplate_engine.weights.stored import CheckedTensors, StoredTensor

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_EMBEDDING = "token_embd.weight"


class GgufModel:
    """What a file holds. Raises ``ModelError``: one line naming the file and the reason."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = GgufFile(path)
            self.checkpoint = read_checkpoint(self.file)
            tokenizer = read_tokenizer(self.file, self.checkpoint.context_length)
        except ImportFailed as error:
            raise ModelError(str(error)) from None
        self.fields: dict[str, Any] = {**self.checkpoint.config, "eos_token_id": tokenizer.end_ids or None}


def find_gguf(model: Path) -> Path | None:
    """The GGUF file that ``model`` is or, as a folder without safetensors, holds. Raises ``ModelError`` for several."""
    if model.is_file():
        return model
    if not model.is_dir() or any(model.glob("*.safetensors*")):
        return None
    found = sorted(model.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:3])
        raise ModelError(f"{model}: holds {len(found)} GGUF files ({names}); name the one to load")
    return found[0] if found else None


class GgufSource:
    """The tensors of a GGUF file. Block formats show as F32, which ``read`` gives; ``weight`` keeps their bits."""

    def __init__(self, model: GgufModel, progress: ReportProgress) -> None:
        self.directory = model.path
        self._model, self._progress = model, progress
        self._named = {weight.name: weight for weight in model.checkpoint.weights}
        self.tensors = {
            name: _stored(model.path, weight.source, weight.source.stored_dtype, weight.shape)
            for name, weight in self._named.items()
        }
        self._total = sum(stored.nbytes for stored in self.tensors.values())
        self._reader = ReadAhead(self.tensors)
        self.clock = self._reader.clock

    @property
    def in_blocks(self) -> bool:
        """Whether any tensor is in a block format."""
        return any(named.source.type not in _PLAIN for named in self._named.values())

    @cached_property
    def embedding(self) -> str:
        return next(name for name, weight in self._named.items() if weight.source.name == _EMBEDDING)

    def close(self) -> None:
        self._reader.close()

    def read(self, name: str) -> Tensor:
        """The tensor in a float type, in memory of its own."""
        named = self._named[name]
        kind = named.source.type
        if kind in _PLAIN:
            values = self._take(name).view(_PLAIN[kind]).view(named.source.shape)
        else:
            values = decode_blocks(kind, self._take(name), (named.source.shape[0], _width(named))).dequantized()
        if named.transform is np.transpose:
            return values.t().contiguous()
        return values if named.transform is None else values[_order(named)]

    def weight(self, name: str) -> Int4Weight | Int8Weight | None:
        """A matrix ``[out, in]`` with the bits it is stored in; None for a float type."""
        named = self._named[name]
        if named.source.type in _PLAIN:
            return None
        weight = decode_blocks(named.source.type, self._take(name), (named.source.shape[0], _width(named)))
        if named.transform is None or named.transform is np.transpose:  # GGUF always has [out, in]
            return weight
        ordered = take_rows(weight, _order(named))
        assert not isinstance(ordered, Tensor)
        return ordered

    def revision(self) -> str:
        """A short hash of the file's size and of all that lies before its tensors' values."""
        digest = hashlib.sha256(f"{self._model.path.name}\0{self._model.file.size}\0".encode())
        end = min((stored.offset for stored in self.tensors.values()), default=self._model.file.size)
        with self._model.path.open("rb") as file:
            digest.update(file.read(end))
        return digest.hexdigest()[:12]

    def _take(self, name: str) -> Tensor:
        data = self._reader.take(name)
        self._progress("weights", min(1.0, self.clock.bytes / max(1, self._total)))
        return data


class GgufScheme:
    """Block formats keep their bits; a tied head is the embedding as it is stored."""

    name = "gguf"
    out_in = True

    def __init__(self, source: GgufSource) -> None:
        self._source = source

    def linear(self, tensors: CheckedTensors, prefix: str, shape: tuple[int, int]) -> Int4Weight | Int8Weight | None:
        name = f"{prefix}.weight"
        tensors.stored(name)
        return self._checked(tensors, name, shape)

    def tied_head(self, tensors: CheckedTensors, shape: tuple[int, int]) -> Int4Weight | Int8Weight | None:
        return self._checked(tensors, self._source.embedding, shape)

    def _checked(self, tensors: CheckedTensors, name: str, shape: tuple[int, int]) -> Int4Weight | Int8Weight | None:
        weight = self._source.weight(name)
        if weight is not None and weight.shape != shape:
            raise tensors.error(name, f"must have shape {list(shape)}, found {list(weight.shape)}")
        return weight


def _stored(path: Path, tensor: GgufTensor, kind: str, shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(path, kind, shape, tensor.offset, tensor.nbytes)


def _width(named: NamedTensor) -> int:
    return int(np.prod(named.source.shape[1:]))


def _order(named: NamedTensor) -> Tensor:
    """The rows of the file in the order of the Hugging Face layout, int64."""
    assert named.transform is not None
    return torch.from_numpy(named.transform(np.arange(named.source.shape[0])).copy())
