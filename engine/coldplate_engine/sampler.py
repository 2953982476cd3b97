"""From logits to the next token of each row.

Order: temperature, top-k, top-p, min-p, then the inverse of the cumulative distribution at the row's one uniform. Every
sum runs inside one row and in the same order for any number of rows, so a row's result does not depend on its mates.
Tokens tied at the edge of top-k or top-p all stay.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coldplate_engine.messages import Sampling
from coldplate_engine.row_math import BLOCK, exp_sums, greatest, leading
from coldplate_engine.uniform import uniform

# Below this the distribution is a point for any logits a model gives, and the division would overflow.
GREEDY_BELOW = 1e-5
_CANDIDATES = 256


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
    best, highest = greatest(logits)
    # NaN beats every number in a maximum, so the best logit tells for the whole row.
    usable = highest.isfinite().tolist()
    tokens: list[int | None] = [int(token) if good else None for token, good in zip(best.tolist(), usable, strict=True)]
    drawn = [i for i, row in enumerate(rows) if usable[i] and not row.greedy]
    if drawn:
        whole = len(drawn) == len(rows)
        picked, top = (logits, highest) if whole else (logits[drawn], highest[drawn])
        for i, token in zip(drawn, _draw(picked, top, [rows[i] for i in drawn]), strict=True):
            tokens[i] = token
    return tokens


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Rows to draw from: ``logits`` [rows, vocabulary]; ``highest``, ``temperature``, ``draws`` [rows, 1]."""

    logits: Tensor
    highest: Tensor
    temperature: Tensor
    draws: Tensor

    def of(self, rows: list[int]) -> "_Drawn":
        if len(rows) == len(self.logits):
            return self
        return _Drawn(self.logits[rows], self.highest[rows], self.temperature[rows], self.draws[rows])

    def of_one(self, row: int) -> "_Drawn":
        return _Drawn(*(part[row : row + 1] for part in (self.logits, self.highest, self.temperature, self.draws)))

    def weights(self, logits: Tensor) -> Tensor:
        """Of some logits [rows, any]; the greatest of a row has weight 1."""
        return (logits - self.highest).div_(self.temperature).exp_()

    def sums(self) -> Tensor:
        """Of the weights of 256 neighbours, [rows, blocks]."""
        return exp_sums(self.logits, self.highest[:, 0], self.temperature[:, 0])


def _draw(logits: Tensor, highest: Tensor, rows: list[SampleRow]) -> list[int]:
    temperature = _column([row.sampling.temperature for row in rows], logits)
    draws = torch.tensor([uniform(row.sampling.seed, row.position) for row in rows], dtype=torch.float64)
    drawn = _Drawn(logits, highest.unsqueeze(1), temperature, draws.to(logits.device).unsqueeze(1))
    cut = [i for i, row in enumerate(rows) if _cuts(row.sampling, logits.shape[1])]
    whole = [i for i, row in enumerate(rows) if not _cuts(row.sampling, logits.shape[1])]
    tokens: dict[int, int] = {}
    if whole:
        tokens |= zip(whole, _draw_whole(drawn.of(whole)), strict=True)
    if cut:
        tokens |= zip(cut, _draw_cut(drawn.of(cut), [rows[i].sampling for i in cut]), strict=True)
    return [tokens[i] for i in range(len(rows))]


def _draw_whole(rows: _Drawn) -> list[int]:
    """The first index per row at which the running sum of weights exceeds the draw times the whole."""
    vocabulary = rows.logits.shape[1]
    by_block = rows.sums().cumsum(dim=1)
    target = rows.draws * by_block[:, -1:]
    block = torch.searchsorted(by_block, target, right=True).clamp_(max=by_block.shape[1] - 1)
    before = torch.where(block > 0, by_block.gather(1, (block - 1).clamp(min=0)), 0.0)
    columns = block * BLOCK + torch.arange(BLOCK, device=rows.logits.device)
    inside = rows.weights(rows.logits.gather(1, columns.clamp(max=vocabulary - 1))).double()
    inside.masked_fill_(columns >= vocabulary, 0.0)
    offset = _pick(inside.cumsum(dim=1), target - before)
    return [int(token) for token in columns.gather(1, offset).squeeze(1).tolist()]


def _cuts(sampling: Sampling, vocabulary: int) -> bool:
    return 0 < sampling.top_k < vocabulary or sampling.top_p < 1 or sampling.min_p > 0


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device).unsqueeze(1)


def _draw_cut(rows: _Drawn, samplings: list[Sampling]) -> list[int]:
    """Draw from rows of which top-k, top-p or min-p leaves a part: as a rule one inside the few greatest weights."""
    vocabulary = rows.logits.shape[1]
    count = min(_CANDIDATES, vocabulary)
    values, columns = leading(rows.logits, count)
    first = rows.weights(values)
    edge = _edge(rows, first, samplings)
    order = columns.argsort(dim=1)
    kept = first.masked_fill(first < edge, 0.0).gather(1, order).double()
    summed = kept.cumsum(dim=1)
    offset = _pick(summed, rows.draws * summed[:, -1:])
    tokens: list[int] = columns.gather(1, order).gather(1, offset).squeeze(1).tolist()
    if count < vocabulary:
        for i in (edge <= first[:, -1:])[:, 0].nonzero()[:, 0].tolist():  # more may be kept than are in ``first``
            tokens[i] = _draw_long(rows.of_one(i), float(edge[i]))
    return tokens


def _draw_long(row: _Drawn, edge: float) -> int:
    """From all weights of one row that reach the edge."""
    weights = row.weights(row.logits)
    summed = weights.masked_fill_(weights < edge, 0.0).double().cumsum(dim=1)
    return int(_pick(summed, row.draws * summed[:, -1:]))


def _edge(rows: _Drawn, first: Tensor, samplings: list[Sampling]) -> Tensor:
    """The least weight that each row keeps, [rows, 1]; ``first`` are a row's greatest weights, in order."""
    count, vocabulary = first.shape[1], rows.logits.shape[1]
    top_k = [sampling.top_k if sampling.top_k < vocabulary else 0 for sampling in samplings]
    at = torch.tensor([[min(max(k, 1), count) - 1] for k in top_k], device=first.device)
    has_k = torch.tensor([[k > 0] for k in top_k], device=first.device)
    k_edge = first.gather(1, at).masked_fill(~has_k, 0.0)
    edge = torch.maximum(k_edge, _column([sampling.min_p for sampling in samplings], first))
    longer = torch.tensor([[k > count] for k in top_k], device=first.device)
    if any(sampling.top_p < 1 for sampling in samplings):
        top_p = _column([sampling.top_p for sampling in samplings], first)
        inside = first.masked_fill(first < k_edge, 0.0)
        summed = inside.cumsum(dim=1)
        total = summed[:, -1:].clone()
        if of_all := [i for i, k in enumerate(top_k) if k == 0 and samplings[i].top_p < 1]:
            total[of_all] = rows.of(of_all).sums().cumsum(dim=1)[:, -1:].float()
        last = torch.searchsorted(summed, top_p * total)
        longer |= (last == count) & (top_p < 1)
        nucleus = inside.gather(1, last.clamp(max=count - 1)).masked_fill(top_p >= 1, 0.0)
        edge = torch.maximum(edge, nucleus)
    for i in longer[:, 0].nonzero()[:, 0].tolist():
        one = rows.of_one(i)
        edge[i] = max(samplings[i].min_p, _edge_of_long_row(one.weights(one.logits)[0], top_k[i], samplings[i].top_p))
    return edge


def _edge_of_long_row(weights: Tensor, top_k: int, top_p: float) -> float:
    """As ``_edge``, for one row [vocabulary] that keeps more than the candidates."""
    ordered = np.sort(weights.cpu().numpy())[::-1][: top_k or None]  # torch's sort takes ten times as long
    if top_p >= 1:
        return float(ordered[-1])
    summed = ordered.cumsum(dtype=np.float64)
    last = int(np.searchsorted(summed, top_p * summed[-1]))
    return float(ordered[min(last, len(ordered) - 1)])


def _pick(summed: Tensor, target: Tensor) -> Tensor:
    """The first index per row [rows, 1] whose running sum exceeds the target.

    Rounding can put the target a hair beyond the end: then the last index that adds anything.
    """
    within = torch.minimum(target, summed[:, -1:] * (1 - 1e-12))
    return torch.searchsorted(summed, within, right=True).clamp_(max=summed.shape[1] - 1)
