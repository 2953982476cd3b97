"""What a GGUF file gives: a Hugging Face checkpoint's configuration and named tensors, collected and checked."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldplate_engine.importing.errors import ImportFailed
from coldplate_engine.importing.gguf_file import GgufFile, GgufTensor

Transform = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the checkpoint to write: its name, its final shape, its source and what is done to the values."""

    name: str
    shape: tuple[int, ...]
    source: GgufTensor
    transform: Transform | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``config`` is config.json without dtype and token ids; ``vocabulary_size`` is the rows of the embedding."""

    config: dict[str, Any]
    weights: list[Weight]
    vocabulary_size: int
    context_length: int


class Table:
    """Collects weights; in the end every tensor of the file must have been used, so that none is silently dropped."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._unused = dict(file.tensors)
        self.weights: list[Weight] = []

    def add(self, source: str, name: str, shape: Sequence[int], transform: Transform | None = None) -> None:
        tensor = self._unused.pop(source, None)
        if tensor is None:
            raise ImportFailed(self._file.path, f"the tensor {source} is missing")
        stored = tuple(shape[::-1]) if transform is np.transpose else tuple(shape)
        if tensor.shape != stored:
            raise ImportFailed(self._file.path, f"the tensor {source} has shape {tensor.shape}: expected {stored}")
        self.weights.append(Weight(name, tuple(shape), tensor, transform))

    def skip(self, source: str) -> None:
        self._unused.pop(source, None)

    def finish(self) -> list[Weight]:
        if self._unused:
            raise ImportFailed(
                self._file.path, f"the tensor {next(iter(self._unused))[:80]} is not part of a supported model"
            )
        return self.weights


def positive(file: GgufFile, key: str) -> int:
    value = file.require(key, int)
    if value < 1:
        raise ImportFailed(file.path, f"the metadata key {key} is {value}: expected at least 1")
    return value


def positive_real(file: GgufFile, key: str, default: float | None = None) -> float:
    value = file.require(key, float) if default is None else file.get(key, default)
    if not 0 < value < math.inf:
        raise ImportFailed(file.path, f"the metadata key {key} is {value}: expected a number above 0")
    return decimal(value)


def decimal(value: float) -> float:
    """The shortest decimal of a float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def embedding_rows(file: GgufFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise ImportFailed(file.path, "the tensor token_embd.weight is missing")
    return file.tensors["token_embd.weight"].shape[0]


def is_tied(file: GgufFile) -> bool:
    """Whether the output matrix is the embedding: absent, or (by older converters) written a second time."""
    output, embedding = file.tensors.get("output.weight"), file.tensors["token_embd.weight"]
    if output is None:
        return True
    same_form = (output.type, output.shape) == (embedding.type, embedding.shape)
    return same_form and np.array_equal(file.raw(output), file.raw(embedding))
