"""Layers all decoders share. ``N`` is the number of tokens in a step, over all streams."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor

from coldplate_engine.weights.quantized import Weight

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}


class Linear(Protocol):
    """``x [N, in] -> [N, out]``."""

    weight_bytes: int

    def __call__(self, x: Tensor) -> Tensor: ...


MakeLinear = Callable[[Weight, Tensor | None], Linear]  # weight [out, in], bias [out]


class JoinedLinear:
    """Several linears of one input, their outputs side by side."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.parts = parts
        self.weight_bytes = sum(part.weight_bytes for part in parts)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


class RmsNorm:
    """``x / rms(x) * weight`` over the last dimension."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight, self.epsilon = weight, epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class LayerNorm:
    """Mean and variance normalised, then scaled and shifted."""

    def __init__(self, weight: Tensor, bias: Tensor, epsilon: float) -> None:
        self.weight, self.bias, self.epsilon = weight, bias, epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)
