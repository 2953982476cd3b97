"""The greatest of each row of logits."""

import ctypes

import torch
from torch import Tensor


def argmax(library: ctypes.CDLL, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Index (int64) and value of the first greatest of each row of float32 ``logits [rows, n]``.

    NaN counts as greatest, so a value that is not finite marks a row that is unusable.
    """
    logits = logits.contiguous()
    rows, count = logits.shape
    ids, best = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
    if rows:
        library.coldplate_argmax(logits.data_ptr(), rows, count, ids.data_ptr(), best.data_ptr())
    return ids, best
