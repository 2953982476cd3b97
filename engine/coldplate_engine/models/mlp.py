"""The two kinds of MLP of the dense decoder: one for every token, or experts of which a router picks a few a token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from coldplate_engine.models.decoder import joined_linear
from coldplate_engine.models.layers import MakeLinear
from coldplate_engine.runner import ModelError
from coldplate_engine.weights.quantized import Weight
from coldplate_engine.weights.reader import CheckpointReader

Activation = Callable[[Tensor], Tensor]


class Mlp(Protocol):
    """``[N, width] -> [N, width]``."""

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class RoutingSpec:
    """``top_k`` of ``experts``, each ``inner`` wide; ``normalised``: the picked shares are scaled to add up to 1."""

    experts: int
    top_k: int
    inner: int
    normalised: bool


class GatedMlp:
    """``down(activation(gate(x)) * up(x))``; rows of ``gate_up`` are the gate's, then the up projection's."""

    def __init__(
        self,
        prefix: str,
        width: int,
        inner: int,
        activation: Activation,
        weights: CheckpointReader,
        linear: MakeLinear,
        *,
        biased: bool,
    ) -> None:
        def projection(name: str, out: int, into: int) -> tuple[Weight, Tensor | None]:
            weight = weights.linear(f"{prefix}.{name}", (out, into))
            return weight, weights.get(f"{prefix}.{name}.bias", (out,)) if biased else None

        self.gate_up = joined_linear(linear, [projection(name, inner, width) for name in ("gate_proj", "up_proj")])
        self.down = linear(*projection("down_proj", width, inner))
        self.activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=1)  # [N, inner] each
        return self.down(self.activation(gate) * up)


class RoutedMlp:
    """Every token goes through its ``top_k`` experts; a step's tokens are batched expert by expert."""

    def __init__(
        self,
        prefix: str,
        width: int,
        routing: RoutingSpec,
        activation: Activation,
        weights: CheckpointReader,
        linear: MakeLinear,
    ) -> None:
        self.top_k, self.normalised = routing.top_k, routing.normalised
        stored = _experts_stored(prefix, weights)
        if stored != routing.experts:
            raise ModelError(
                f"{weights.directory}: {prefix}.experts holds {stored} experts, but config.json says {routing.experts}"
            )
        self.router = linear(weights.get(f"{prefix}.gate.weight", (routing.experts, width)), None)
        self.experts = [
            GatedMlp(f"{prefix}.experts.{expert}", width, routing.inner, activation, weights, linear, biased=False)
            for expert in range(routing.experts)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        shares, picked = torch.softmax(self.router(x).float(), dim=-1).topk(self.top_k, dim=-1)  # [N, top_k]
        if self.normalised:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        shares = shares.to(x.dtype).flatten()
        picked = picked.flatten()
        order = picked.argsort(stable=True)
        out = torch.zeros_like(x)
        first = 0
        for expert, count in enumerate(picked.bincount().tolist()):
            if count:
                at = order[first : first + count]
                tokens = at // self.top_k
                out.index_add_(0, tokens, self.experts[expert](x[tokens]) * shares[at].unsqueeze(1))
                first += count
        return out


def _experts_stored(prefix: str, weights: CheckpointReader) -> int:
    """Experts ``0, 1, …`` that are there, whether in plain weights or in fewer bits."""
    start = f"{prefix}.experts."
    found = {name.removeprefix(start).split(".")[0] for name in weights.names() if name.startswith(start)}
    return sum(name.isdigit() for name in found)
