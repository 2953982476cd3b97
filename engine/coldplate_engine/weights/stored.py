"""Tensors as a checkpoint's files hold them: where they lie, and reads that are held against what is expected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from coldplate_engine.runner import ModelError

FLOAT_KINDS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """``kind`` is the file format's word for the type; ``nbytes`` lie at ``offset`` of ``file``."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class TensorSource(Protocol):
    """The files of one checkpoint."""

    directory: Path

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    def read(self, name: str) -> Tensor:
        """A private copy of the tensor as it is stored."""
        ...

    def revision(self) -> str: ...

    def close(self) -> None: ...


class CheckedTensors:
    """Reads of a source that must be there, of one of some kinds and of a shape. Raises ``ModelError`` naming all."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source

    def __contains__(self, name: str) -> bool:
        return name in self._source.tensors

    def stored(self, name: str) -> StoredTensor:
        stored = self._source.tensors.get(name)
        if stored is None:
            raise ModelError(f"{self._source.directory}: tensor {name} is missing")
        return stored

    def read(self, name: str, shape: Sequence[int], kinds: Sequence[str] = FLOAT_KINDS) -> Tensor:
        stored = self.stored(name)
        if stored.shape != tuple(shape):
            raise self.error(name, f"must have shape {list(shape)}, found {list(stored.shape)}")
        if stored.kind not in kinds:
            raise self.error(name, f"has type {stored.kind}; only {', '.join(kinds)} can be loaded")
        return self._source.read(name)

    def error(self, name: str, reason: str) -> ModelError:
        return ModelError(f"{self.stored(name).file}: tensor {name} {reason}")
