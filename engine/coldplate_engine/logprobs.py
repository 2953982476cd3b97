"""Log-probabilities of tokens, from the model's own logits: before temperature, penalties, bias and constraint."""

import torch
from torch import Tensor

from coldplate_engine.messages import TokenLogprob
from coldplate_engine.row_math import exp_sums, greatest, leading


def token_logprobs(logits: Tensor, rows: list[int], tokens: list[int], counts: list[int]) -> list[TokenLogprob]:
    """The log-probability of ``tokens[i]`` in row ``rows[i]`` of ``logits`` (float32, [rows, vocabulary]).

    ``counts[i]`` is the number of alternatives: the likeliest tokens, greatest first, of equals the smaller id first.
    """
    found: dict[int, TokenLogprob] = {}
    for count in set(counts):
        places = [i for i, wanted in enumerate(counts) if wanted == count]
        wanted_rows = [rows[i] for i in places]
        picked = logits if wanted_rows == list(range(len(logits))) else logits[wanted_rows]
        of = _same_count(picked, [tokens[i] for i in places], count)
        found |= zip(places, of, strict=True)
    return [found[i] for i in range(len(rows))]


def _same_count(logits: Tensor, tokens: list[int], count: int) -> list[TokenLogprob]:
    highest = greatest(logits)[1].unsqueeze(1)
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1)).double()
    first, ids = leading(logits, min(count, logits.shape[1])) if count else (logits[:, :0], logits[:, :0].long())
    sums = exp_sums(logits, highest[:, 0], torch.ones(len(logits), device=logits.device))
    normaliser = highest.double() + sums.cumsum(dim=1)[:, -1:].log()
    of_chosen: list[float] = (chosen - normaliser)[:, 0].tolist()
    of_first: list[list[float]] = (first.double() - normaliser).tolist()
    return [
        TokenLogprob(
            token, logprob, tuple(sorted(zip(row_ids, row, strict=True), key=lambda pair: (-pair[1], pair[0])))
        )
        for token, logprob, row_ids, row in zip(tokens, of_chosen, ids.tolist(), of_first, strict=True)
    ]
