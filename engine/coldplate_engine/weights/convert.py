"""Converting plain weights to fewer bits while they are loaded (``--quantize``)."""

from typing import Literal

import torch
from torch import Tensor

from coldplate_engine.weights.quantized import Int4Weight, Int8Weight, Weight

QuantizeTo = Literal["int4", "int8", "w8a8"]

INT4_GROUP = 32
_CHUNK_VALUES = 1 << 22  # converted at once, so that temporaries stay small beside the weights


def converted(weight: Tensor, to: QuantizeTo, *, head: bool = False) -> Weight:
    """``weight [out, in]`` in fewer bits.

    The output ``head`` keeps int8 under int4: a wrong step there is a wrong token. So do matrices whose rows do not
    divide into int4's groups.
    """
    if to == "int4" and weight.shape[1] % INT4_GROUP == 0:
        return to_int8(weight, False, INT4_GROUP) if head else to_int4(weight, INT4_GROUP)
    return to_int8(weight, activations=to == "w8a8")


def to_int8(weight: Tensor, activations: bool, group_size: int | None = None) -> Int8Weight:
    """Symmetric: the largest magnitude of each group becomes 127. By default a group is a whole row."""
    rows, width = weight.shape
    group = group_size or width
    values, scales = torch.empty(rows, width, dtype=torch.int8), torch.empty(rows, width // group)
    for part in _row_parts(rows, width):
        grouped = weight[part].float().view(-1, width // group, group)
        scale = grouped.abs().amax(dim=2, keepdim=True).div_(127)
        scales[part] = scale.squeeze(2)
        codes = (grouped / scale.clamp(min=torch.finfo(torch.float32).tiny)).round_()
        values[part] = codes.to(torch.int8).view(-1, width)
    return Int8Weight(values, scales, group, activations)


def to_int4(weight: Tensor, group_size: int) -> Int4Weight:
    """Sixteen even steps between the least and the greatest value of each group. ``group_size`` must divide the row."""
    rows, width = weight.shape
    groups = width // group_size
    packed = torch.empty(rows, width // 2, dtype=torch.uint8)
    scales, zeros = torch.empty(rows, groups), torch.empty(rows, groups)
    for part in _row_parts(rows, width):
        grouped = weight[part].float().view(-1, groups, group_size)
        low, high = grouped.amin(dim=2, keepdim=True), grouped.amax(dim=2, keepdim=True)
        scale = (high - low).div_(15)
        # A group of equal values has no range: its one value becomes the scale and its code is 1.
        flat = scale.abs() < torch.finfo(torch.float32).tiny
        scale = torch.where(flat, torch.where(low == 0, 1.0, low), scale)
        zero = torch.where(flat, 0.0, -low / scale)
        codes = (grouped / scale).add_(zero).round_().clamp_(0, 15).to(torch.uint8).view(-1, width)
        packed[part] = codes[:, 0::2] | codes[:, 1::2] << 4
        scales[part], zeros[part] = scale.squeeze(2), zero.squeeze(2)
    return Int4Weight(packed, scales, zeros, group_size)


def _row_parts(rows: int, width: int) -> list[slice]:
    step = max(1, _CHUNK_VALUES // max(1, width))
    return [slice(at, min(rows, at + step)) for at in range(0, rows, step)]
