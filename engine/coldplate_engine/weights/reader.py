"""The weights of a checkpoint as models ask for them: plain tensors, and the matrices of linear layers."""

import math
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from coldplate_engine.runner import ModelError, ReportProgress
from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.convert import QuantizeTo, converted
from coldplate_engine.weights.gguf import GgufScheme, GgufSource
from coldplate_engine.weights.quantized import Weight
from coldplate_engine.weights.read_ahead import ReadClock
from coldplate_engine.weights.safetensors import SafetensorsDirectory
from coldplate_engine.weights.schemes import Scheme, scheme_of
from coldplate_engine.weights.stored import CheckedTensors


class CheckpointReader:
    """Reads one checkpoint, tensor by tensor; every tensor is a private copy.

    ``dtype`` is that of plain weights. ``quantize`` converts the linears of a plain checkpoint as they are read.
    ``parameter_count`` counts what was taken. Raises ``ModelError`` naming file, tensor and reason.
    """

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, progress: ReportProgress, quantize: QuantizeTo | None = None
    ) -> None:
        self.directory = config.path.parent if config.gguf is None else config.path
        self.dtype = dtype
        self.parameter_count = 0
        self._config, self._quantize = config, quantize
        self._scheme: Scheme | None
        self._source: SafetensorsDirectory | GgufSource
        if config.gguf is None:
            self._scheme = scheme_of(config)
            self._source = SafetensorsDirectory(self.directory, progress)
        else:
            self._source = GgufSource(config.gguf, progress)
            self._scheme = GgufScheme(self._source) if self._source.in_blocks else None
        if self._scheme is not None and quantize is not None:
            raise ModelError(
                f"--quantize {quantize} is for plain weights: {self.directory} holds {self._scheme.name} already"
            )
        self._tensors = CheckedTensors(self._source)

    @property
    def clock(self) -> ReadClock:
        """What was read and how fast."""
        return self._source.clock

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._source.close()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def names(self) -> Iterable[str]:
        """The names of all stored tensors."""
        return self._source.tensors

    @property
    def quantization(self) -> str:
        """How the linears are stored in memory, "" for plain weights."""
        return self._quantize or (self._scheme.name if self._scheme else "")

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor ``name``, which must have this shape, in ``dtype``."""
        tensor = self._tensors.read(name, shape).to(self.dtype)
        self.parameter_count += tensor.numel()
        return tensor

    def raw(self, name: str) -> Tensor:
        """The tensor ``name`` (one of ``names``) in its own shape: floating point in ``dtype``, else as stored."""
        tensor = self._source.read(name)
        self.parameter_count += tensor.numel()
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def linear(self, prefix: str, shape: tuple[int, int], *, transposed: bool = False) -> Weight:
        """The matrix of the linear layer ``prefix`` (its name without ``.weight``), shape ``(out, in)``.

        A plain tensor in ``dtype``, or fewer bits: by what the checkpoint stores, or by ``quantize``. ``transposed``:
        the checkpoint keeps ``[in, out]``.
        """
        if self._scheme is not None and (self._scheme.out_in or not transposed):
            weight = self._scheme.linear(self._tensors, prefix, shape)
            if weight is not None:
                self.parameter_count += math.prod(shape)
                return weight
        stored = shape[::-1] if transposed else shape
        tensor = self._tensors.read(f"{prefix}.weight", stored)
        self.parameter_count += tensor.numel()
        if transposed:
            tensor = tensor.t().contiguous()
        return tensor.to(self.dtype) if self._quantize is None else converted(tensor, self._quantize)

    def head(self, embedding: Tensor, tied: bool) -> Weight:
        """The output projection ``[vocabulary, width]``: the stored one where there is one, else the embedding.

        A tied checkpoint may carry ``lm_head.weight`` too: an equal copy is not counted, a different one is obeyed.
        """
        name = "lm_head.weight"
        shape = (embedding.shape[0], embedding.shape[1])
        if self._scheme is not None and any(key.startswith("lm_head.") for key in self.names()):
            weight = self._scheme.linear(self._tensors, "lm_head", shape)
            if weight is not None:
                self.parameter_count += math.prod(shape)
                return weight
        if name in self:
            head = self._tensors.read(name, shape).to(self.dtype)
            if not (tied and torch.equal(head, embedding)):
                self.parameter_count += head.numel()
        elif tied:
            stored = self._scheme.tied_head(self._tensors, shape) if self._scheme is not None else None
            if stored is not None:
                return stored
            head = embedding
        else:
            raise ModelError(
                f"{self.directory}: tensor {name} is missing, and {self._config.path.name} has "
                "tie_word_embeddings false"
            )
        return head if self._quantize is None else converted(head, self._quantize, head=True)

    def revision(self) -> str:
        """A short hash that changes with the configuration, the tokenizer, the template and the weight files."""
        return self._source.revision()
