"""Reductions over rows of logits. Each is made in the same order for any number of rows and threads."""

import torch
from torch import Tensor
from torch.nn import functional

from coldplate_engine.kernels.argmax import argmax as kernel_argmax
from coldplate_engine.kernels.library import loaded_library

BLOCK = 256


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


def block_sums(weights: Tensor) -> Tensor:
    """Sums of 256 neighbours [rows, blocks], in double precision; short last blocks are filled with zeros."""
    short = -weights.shape[1] % BLOCK
    padded = functional.pad(weights, (0, short)) if short else weights
    return padded.view(len(padded), -1, BLOCK).sum(dim=2).double()
