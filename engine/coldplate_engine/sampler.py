"""From logits to the next token of each row.

Order: temperature, top-k, top-p, min-p, then the inverse of the cumulative distribution at the row's one uniform. Every
sum runs inside one row and in the same order for any number of rows, so a row's result does not depend on its mates.
Tokens tied at the edge of top-k or top-p all stay.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from coldplate_engine.messages import Sampling
from coldplate_engine.uniform import uniform

# Below this the distribution is a point for any logits a model gives, and the division would overflow.
GREEDY_BELOW = 1e-5
_BLOCK = 256
_CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class SampleRow:
    """How to sample one row; ``position`` is the index of the output token."""

    sampling: Sampling
    position: int

    @property
    def greedy(self) -> bool:
        return self.sampling.temperature < GREEDY_BELOW


def sample(logits: Tensor, rows: list[SampleRow]) -> list[int | None]:
    """Choose a token per row of ``logits`` (float32, [len(rows), vocabulary]), which is left as it is.

    None for a row whose logits hold NaN or +infinity, or nothing finite.
    """
    best = _argmax(logits)
    # NaN beats every number in a maximum, so the best logit tells for the whole row.
    usable = logits.gather(1, best.unsqueeze(1)).squeeze(1).isfinite().tolist()
    tokens: list[int | None] = [int(token) if good else None for token, good in zip(best.tolist(), usable, strict=True)]
    drawn = [i for i, row in enumerate(rows) if usable[i] and not row.greedy]
    if drawn:
        picked = logits if len(drawn) == len(rows) else logits[drawn]
        for i, token in zip(drawn, _draw(picked, best[drawn], [rows[i] for i in drawn]), strict=True):
            tokens[i] = token
    return tokens


def _argmax(logits: Tensor) -> Tensor:
    """Index of the first greatest value per row: block maxima first, several times faster than one long argmax."""
    vocabulary = logits.shape[1]
    body = vocabulary - vocabulary % _BLOCK
    if body == 0:
        return logits.argmax(dim=1)
    maxima = logits[:, :body].view(len(logits), -1, _BLOCK).amax(dim=2)
    if body < vocabulary:
        maxima = torch.cat([maxima, logits[:, body:].amax(dim=1, keepdim=True)], dim=1)
    start = maxima.argmax(dim=1, keepdim=True) * _BLOCK
    columns = (start + torch.arange(_BLOCK, device=logits.device)).clamp_(max=vocabulary - 1)
    inside = logits.gather(1, columns).argmax(dim=1, keepdim=True)
    return columns.gather(1, inside).squeeze(1)


def _draw(logits: Tensor, best: Tensor, rows: list[SampleRow]) -> list[int]:
    temperature = _column([row.sampling.temperature for row in rows], logits)
    highest = logits.gather(1, best.unsqueeze(1))
    weights = (logits - highest).div_(temperature).exp_()  # the greatest is 1
    _keep_top(weights, rows)
    min_p = [row.sampling.min_p for row in rows]
    if any(min_p):
        weights.masked_fill_(weights < _column(min_p, logits), 0.0)
    draws = [uniform(row.sampling.seed, row.position) for row in rows]
    return _invert(weights, torch.tensor(draws, dtype=torch.float64, device=logits.device))


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device).unsqueeze(1)


def _keep_top(weights: Tensor, rows: list[SampleRow]) -> None:
    """Set to zero, in place, what top-k and top-p leave out."""
    vocabulary = weights.shape[1]
    cut = [i for i, row in enumerate(rows) if 0 < row.sampling.top_k < vocabulary or row.sampling.top_p < 1]
    if not cut:
        return
    part = weights[cut]
    top_k = [k if 0 < (k := rows[i].sampling.top_k) < vocabulary else 0 for i in cut]
    top_p = [rows[i].sampling.top_p for i in cut]
    count = min(vocabulary, max(max(top_k), _CANDIDATES if min(top_p) < 1 else 1))
    greatest = part.topk(count, dim=1).values
    if any(top_k):
        at = torch.tensor([max(k, 1) - 1 for k in top_k], device=weights.device).unsqueeze(1)
        edge = greatest.gather(1, at)
        edge[[k == 0 for k in top_k]] = 0.0
        part.masked_fill_(part < edge, 0.0)
        greatest = greatest.masked_fill(greatest < edge, 0.0)
    if min(top_p) < 1:
        part.masked_fill_(part < _nucleus_edge(part, greatest, _column(top_p, weights)), 0.0)
    weights[cut] = part


def _nucleus_edge(weights: Tensor, greatest: Tensor, top_p: Tensor) -> Tensor:
    """The least weight inside each row's nucleus, [rows, 1]; ``greatest`` are a row's first weights, in order."""
    needed = top_p * _block_sums(weights).cumsum(dim=1)[:, -1:].float()
    summed = greatest.cumsum(dim=1)
    last = torch.searchsorted(summed, needed)
    edge = greatest.gather(1, last.clamp(max=greatest.shape[1] - 1))
    longer = (last == greatest.shape[1]) & (top_p < 1)  # flat rows, whose nucleus goes on behind ``greatest``
    for row in longer[:, 0].nonzero()[:, 0].tolist():
        ordered = weights[row].sort(descending=True).values
        at = int(torch.searchsorted(ordered.cumsum(dim=0), needed[row]))
        edge[row] = ordered[min(at, len(ordered) - 1)]
    return edge.masked_fill_(top_p >= 1, 0.0)


def _block_sums(weights: Tensor) -> Tensor:
    """Sums of 256 neighbours [rows, blocks], in double precision; short last blocks are filled with zeros."""
    short = -weights.shape[1] % _BLOCK
    padded = functional.pad(weights, (0, short)) if short else weights
    return padded.view(len(padded), -1, _BLOCK).sum(dim=2).double()


def _invert(weights: Tensor, draws: Tensor) -> list[int]:
    """The first index per row at which the running sum of weights exceeds ``draw`` times the whole."""
    vocabulary = weights.shape[1]
    by_block = _block_sums(weights).cumsum(dim=1)
    target = (draws * by_block[:, -1]).unsqueeze(1)
    block = torch.searchsorted(by_block, target, right=True).clamp_(max=by_block.shape[1] - 1)
    before = torch.where(block > 0, by_block.gather(1, (block - 1).clamp(min=0)), 0.0)
    columns = block * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    inside = weights.gather(1, columns.clamp(max=vocabulary - 1)).double()
    inside.masked_fill_(columns >= vocabulary, 0.0)
    summed = inside.cumsum(dim=1)
    # Block sums are rounded once more than these, so the target may lie a hair beyond: stay on the last real token.
    within = torch.minimum(target - before, summed[:, -1:] * (1 - 1e-12))
    offset = torch.searchsorted(summed, within, right=True).clamp_(max=_BLOCK - 1)
    return [int(token) for token in columns.gather(1, offset).squeeze(1).tolist()]
