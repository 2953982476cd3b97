"""Weights in fewer bits, as data: what a loader makes and a device's linear takes.

Rows are output features. Every row is quantised on its own, so rows can be joined, split and reordered like those of a
plain tensor ``[out, in]``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """``weight[o, i] = (q[o, i] - zeros[o, g]) * scales[o, g]`` with ``g = i // group_size`` and ``q`` in 0 … 15.

    ``packed`` uint8 ``[out, in / 2]``: column ``2j`` in the low half of byte ``j``. ``scales`` and ``zeros`` float32
    ``[out, in / group_size]``; zeros need not be whole numbers.
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor
    group_size: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], self.packed.shape[1] * 2

    def dequantized(self) -> Tensor:
        """float32 ``[out, in]``."""
        q = torch.stack((self.packed & 15, self.packed >> 4), dim=2).view(self.shape[0], -1, self.group_size)
        return ((q.float() - self.zeros.unsqueeze(2)) * self.scales.unsqueeze(2)).view(self.shape)


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """``weight[o, i] = values[o, i] * scales[o, i // group_size]``, ``values`` int8, ``scales`` float32.

    ``activations``: whether activations are to be quantised to int8 as well, per token (W8A8).
    """

    values: Tensor
    scales: Tensor
    group_size: int
    activations: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def dequantized(self) -> Tensor:
        """float32 ``[out, in]``."""
        grouped = self.values.float().view(self.shape[0], -1, self.group_size)
        return (grouped * self.scales.unsqueeze(2)).view(self.shape)


Weight = Tensor | Int4Weight | Int8Weight


def take_rows(weight: Weight, rows: Tensor) -> Weight:
    """The rows ``rows [n]`` (int64), in that order."""
    if isinstance(weight, Tensor):
        return weight[rows]
    if isinstance(weight, Int4Weight):
        return replace(weight, packed=weight.packed[rows], scales=weight.scales[rows], zeros=weight.zeros[rows])
    return replace(weight, values=weight.values[rows], scales=weight.scales[rows])


def join_rows(weights: Sequence[Weight]) -> Weight:
    """One weight of all rows. Raises ValueError when the parts are not of one kind and group size."""
    first = weights[0]
    if isinstance(first, Tensor):
        plain = [weight for weight in weights if isinstance(weight, Tensor)]
        if len(plain) == len(weights):
            return torch.cat(plain)
    elif isinstance(first, Int4Weight):
        int4 = [w for w in weights if isinstance(w, Int4Weight) and w.group_size == first.group_size]
        if len(int4) == len(weights):
            return replace(
                first,
                packed=torch.cat([w.packed for w in int4]),
                scales=torch.cat([w.scales for w in int4]),
                zeros=torch.cat([w.zeros for w in int4]),
            )
    else:
        kind = (first.group_size, first.activations)
        int8 = [w for w in weights if isinstance(w, Int8Weight) and (w.group_size, w.activations) == kind]
        if len(int8) == len(weights):
            values, scales = torch.cat([w.values for w in int8]), torch.cat([w.scales for w in int8])
            return replace(first, values=values, scales=scales)
    raise ValueError("weights of different kinds cannot be joined")
