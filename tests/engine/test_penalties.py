"""Penalties against a plain reference and against transformers."""

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from coldplate_engine.messages import Sampling
from coldplate_engine.penalties import TokenCounts

VOCABULARY = 40
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=30)
SAMPLINGS = st.builds(
    Sampling,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3, 2.0]),
    presence_penalty=st.sampled_from([0.0, -1.5, 0.25, 2.0]),
    frequency_penalty=st.sampled_from([0.0, -0.5, 0.75]),
)


def logits_of(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return (torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3).numpy()


def reference(row: list[float], prompt: list[int], output: list[int], sampling: Sampling) -> list[float]:
    counts = Counter(output)
    changed = list(row)
    for token in {*prompt, *output}:
        value = row[token]
        factor = sampling.repetition_penalty
        value = value / factor if value > 0 else value * factor
        value -= sampling.frequency_penalty * counts[token] + sampling.presence_penalty * (counts[token] > 0)
        changed[token] = value
    return changed


@settings(max_examples=100, deadline=None)
@given(TOKENS, TOKENS, TOKENS, SAMPLINGS, st.integers(0, 99))
def test_equal_to_the_reference_step_by_step(
    prompt: list[int], output: list[int], drafts: list[int], sampling: Sampling, seed: int
) -> None:
    counts = TokenCounts(prompt)
    for length in range(len(output) + 1):
        counts.advance([*prompt, *output[:length]])
    row = logits_of(seed)
    expected = reference(row.tolist(), prompt, [*output, *drafts], sampling)
    for token in drafts:
        counts.push(token)
    ahead = row.copy()
    counts.apply(ahead, sampling)
    np.testing.assert_allclose(ahead, expected, rtol=1e-5, atol=1e-5)
    for token in reversed(drafts):
        counts.pop(token)
    counts.apply(row, sampling)
    rebuilt = logits_of(seed)
    fresh = TokenCounts(prompt)
    fresh.advance([*prompt, *output])
    fresh.apply(rebuilt, sampling)
    assert row.tolist() == rebuilt.tolist(), "undone guesses leave nothing, and a rebuilt count is the same"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20), TOKENS, st.sampled_from([0.7, 1.1, 1.9]))
def test_repetition_is_that_of_transformers(prompt: list[int], output: list[int], penalty: float) -> None:
    row = logits_of(7)
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.tensor([[*prompt, *output]]), torch.from_numpy(row.copy()).unsqueeze(0))[0]
    counts = TokenCounts(prompt)
    counts.advance([*prompt, *output])
    counts.apply(row, Sampling(repetition_penalty=penalty))
    np.testing.assert_allclose(row, expected.numpy(), rtol=1e-6)
