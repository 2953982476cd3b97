"""GGUF's block formats as our weights in fewer bits, with the bits they have.

Layouts: ggml-common.h of https://github.com/ggml-org/ggml. Q4_0, Q4_1, Q4_K, Q5_0 and Q8_0 keep their exact values.
Q6_K, whose groups of 16 are too short for the kernels, and Q5_1 and Q5_K, whose five bits have a minimum, become int8
in groups of 32: no value moves by more than half of 1/127 of its group's largest.
"""

from collections.abc import Callable

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from coldplate_engine.weights.convert import to_int8
from coldplate_engine.weights.packing import pack_nibbles
from coldplate_engine.weights.quantized import Int4Weight, Int8Weight

GROUP = 32


def decode_blocks(kind: str, data: Tensor, shape: tuple[int, int]) -> Int4Weight | Int8Weight:
    """``data`` uint8, the bytes of a matrix of this ``shape`` in the file, rows one behind the other."""
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = data.view(-1, block_bytes)
    exact = _EXACT.get(kind)
    if exact is not None:
        return exact(blocks, shape)
    rows = data.view(shape[0], shape[1] // block * block_bytes).numpy()
    with np.errstate(all="ignore"):  # an infinite scale is the file's own, not an error here
        values = dequantize(rows, GGMLQuantizationType[kind]).astype(np.float32, copy=False)
    return to_int8(torch.from_numpy(values), activations=False, group_size=GROUP)


def _halves(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte ``at`` of each block, as float32 ``[blocks, 1]``."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(blocks: Tensor, at: int, count: int, run: int) -> Tensor:
    """Codes ``[blocks, 2 count]`` of ``count`` bytes: each run of ``run`` bytes has its low halves first."""
    data = blocks[:, at : at + count].reshape(len(blocks), -1, run)
    return torch.cat((data & 15, data >> 4), dim=2).view(len(blocks), -1)


def _int4(codes: Tensor, scales: Tensor, minima: Tensor, shape: tuple[int, int]) -> Int4Weight:
    """``code * scale + minimum`` in groups of 32. A scale of 0 leaves the minimum: code 1 of a scale of that size."""
    flat = (scales == 0) & torch.isfinite(minima)
    scales = torch.where(flat, minima, scales).reshape(shape[0], -1)
    zeros = torch.where(flat, 0.0, -minima.reshape(flat.shape) / scales.reshape(flat.shape))
    zeros = torch.where(scales.reshape(flat.shape) == 0, 0.0, zeros).reshape(scales.shape)
    codes = torch.where(flat.unsqueeze(-1), torch.ones_like(codes[:1, :1]), codes.view(*flat.shape, GROUP))
    return Int4Weight(pack_nibbles(codes.view(shape)), scales.contiguous(), zeros.contiguous(), GROUP)


def _q4_0(blocks: Tensor, shape: tuple[int, int]) -> Int4Weight:
    scales = _halves(blocks, 0)
    codes = _nibbles(blocks, 2, 16, 16)
    groups = (shape[0], shape[1] // GROUP)
    return Int4Weight(pack_nibbles(codes.view(shape)), scales.view(groups), torch.full(groups, 8.0), GROUP)


def _q4_1(blocks: Tensor, shape: tuple[int, int]) -> Int4Weight:
    return _int4(_nibbles(blocks, 4, 16, 16), _halves(blocks, 0), _halves(blocks, 2), shape)


def _q4_k(blocks: Tensor, shape: tuple[int, int]) -> Int4Weight:
    low, high, top = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]  # 6-bit factors of 8 groups in 12 bytes
    scales = torch.cat((low & 63, (top & 15) | (low >> 6) << 4), dim=1).float() * _halves(blocks, 0)
    minima = torch.cat((high & 63, (top >> 4) | (high >> 6) << 4), dim=1).float() * -_halves(blocks, 2)
    return _int4(_nibbles(blocks, 16, 128, 32), scales, minima, shape)


def _q5_0(blocks: Tensor, shape: tuple[int, int]) -> Int8Weight:
    bits = torch.arange(8, dtype=torch.uint8)
    fifth = ((blocks[:, 2:6].unsqueeze(2) >> bits) & 1).view(-1, GROUP) << 4
    values = (_nibbles(blocks, 6, 16, 16) | fifth).to(torch.int8) - 16
    return Int8Weight(values.view(shape), _halves(blocks, 0).view(shape[0], -1), GROUP, activations=False)


def _q8_0(blocks: Tensor, shape: tuple[int, int]) -> Int8Weight:
    values = blocks[:, 2:].contiguous().view(torch.int8).view(shape)
    return Int8Weight(values, _halves(blocks, 0).view(shape[0], -1), GROUP, activations=False)


_EXACT: dict[str, Callable[[Tensor, tuple[int, int]], Int4Weight | Int8Weight]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q5_0": _q5_0,
    "Q8_0": _q8_0,
}
