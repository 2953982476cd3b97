"""Reductions over rows of logits. Each is made in the same order for any number of rows and threads."""

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from coldplate_engine.kernels.argmax import argmax as kernel_argmax
from coldplate_engine.kernels.library import loaded_library

BLOCK = 256
_SHORT_BLOCK = 64
_EXP_SUMS: Any = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, *[ctypes.c_void_p] * 3]


def greatest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Index and value of the first greatest per row; a NaN counts as greatest. By the CPU kernels where they are."""
    library = loaded_library()
    if library is not None and logits.device.type == "cpu" and logits.dtype == torch.float32:
        return kernel_argmax(library, logits)
    best = argmax(logits)
    return best, logits.gather(1, best.unsqueeze(1)).squeeze(1)


def argmax(logits: Tensor) -> Tensor:
    """Index of the first greatest value per row: block maxima first, several times faster than one long argmax."""
    vocabulary = logits.shape[1]
    body = vocabulary - vocabulary % BLOCK
    if body == 0:
        return logits.argmax(dim=1)
    maxima = logits[:, :body].view(len(logits), -1, BLOCK).amax(dim=2)
    if body < vocabulary:
        maxima = torch.cat([maxima, logits[:, body:].amax(dim=1, keepdim=True)], dim=1)
    start = maxima.argmax(dim=1, keepdim=True) * BLOCK
    columns = (start + torch.arange(BLOCK, device=logits.device)).clamp_(max=vocabulary - 1)
    inside = logits.gather(1, columns).argmax(dim=1, keepdim=True)
    return columns.gather(1, inside).squeeze(1)


def exp_sums(logits: Tensor, highest: Tensor, temperature: Tensor) -> Tensor:
    """Sums of e^((logit - highest) / temperature) over 256 neighbours: [rows, blocks], in double precision.

    ``highest`` and ``temperature`` are float32 [rows]; no logit is NaN. By the CPU kernels where they are.
    """
    library = loaded_library()
    if library is None or logits.device.type != "cpu":
        return block_sums((logits - highest.unsqueeze(1)).div_(temperature.unsqueeze(1)).exp_())
    logits, highest, temperature = logits.contiguous(), highest.contiguous(), temperature.contiguous()
    rows, count = logits.shape
    sums = torch.empty(rows, -(-count // BLOCK), dtype=torch.float64)
    function = library.coldplate_exp_sums
    function.restype, function.argtypes = None, _EXP_SUMS
    function(logits.data_ptr(), rows, count, highest.data_ptr(), temperature.data_ptr(), sums.data_ptr())
    return sums


def leading(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` greatest of each row, greatest first, and their indices: [rows, count] each.

    Several times faster than one long ``topk``: the least of that many block maxima leaves few candidates.
    """
    rows, vocabulary = logits.shape
    blocks = vocabulary // _SHORT_BLOCK
    if blocks < count or logits.device.type != "cpu":
        values, columns = logits.topk(count, dim=1)
        return values, columns
    body = blocks * _SHORT_BLOCK
    maxima = logits[:, :body].view(rows, blocks, _SHORT_BLOCK).amax(dim=2)
    least = maxima.topk(count, dim=1).values[:, -1].numpy()
    table = logits.numpy()
    columns = torch.empty(rows, count, dtype=torch.int64)
    for row in range(rows):
        candidates = np.flatnonzero(table[row] >= least[row])
        if len(candidates) > 8 * count:  # most of the row is alike, or forbidden
            candidates = candidates[np.argpartition(table[row, candidates], -count)[-count:]]
        order = np.argsort(-table[row, candidates], kind="stable")[:count]
        columns[row] = torch.from_numpy(candidates[order])
    return logits.gather(1, columns), columns


def block_sums(weights: Tensor) -> Tensor:
    """Sums of 256 neighbours [rows, blocks], in double precision; short last blocks are filled with zeros."""
    short = -weights.shape[1] % BLOCK
    padded = functional.pad(weights, (0, short)) if short else weights
    return padded.view(len(padded), -1, BLOCK).sum(dim=2).double()
