"""The sampler against a slow, plain reference, alone and among other rows."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate_engine import row_math
from coldplate_engine.kernels.library import load_library
from coldplate_engine.messages import Sampling
from coldplate_engine.row_math import exp_sums, leading
from coldplate_engine.sampler import SampleRow, sample
from coldplate_engine.uniform import uniform

SIZES = [5, 256, 257, 700]


def logits_of(rows: int, vocabulary: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


def kept(logits: torch.Tensor, sampling: Sampling) -> dict[int, float]:
    """Tokens and probabilities that remain, by the definition: one sort, one pass, doubles."""
    scaled = [value / sampling.temperature for value in logits.double().tolist()]
    highest = max(scaled)
    weights = {token: math.exp(value - highest) for token, value in enumerate(scaled)}
    ordered = sorted(weights, key=lambda token: -weights[token])
    if sampling.top_k:
        ordered = ordered[: sampling.top_k]
    total, so_far, nucleus = sum(weights[token] for token in ordered), 0.0, []
    for token in ordered:
        nucleus.append(token)
        so_far += weights[token]
        if so_far >= sampling.top_p * total:
            break
    final = {token: weights[token] for token in sorted(nucleus) if weights[token] >= sampling.min_p}
    whole = sum(final.values())
    return {token: weight / whole for token, weight in final.items()}


def reference(logits: torch.Tensor, row: SampleRow) -> tuple[int, float]:
    """The token, and how close the draw came to a border between two tokens."""
    draw, so_far = uniform(row.sampling.seed, row.position), 0.0
    chances = kept(logits, row.sampling)
    for token, chance in chances.items():
        if so_far + chance > draw:
            return token, min(abs(so_far - draw), abs(so_far + chance - draw))
        so_far += chance
    return max(chances), 0.0


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 1e-4]),
    top_k=st.sampled_from([0, 1, 3, 50, 10_000]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SIZES), st.lists(SAMPLINGS, min_size=1, max_size=8), st.integers(0, 1000), st.integers(0, 999))
def test_equal_to_the_reference_alone_and_in_a_batch(
    vocabulary: int, samplings: list[Sampling], position: int, seed: int
) -> None:
    logits = logits_of(len(samplings), vocabulary, seed)
    rows = [SampleRow(sampling, position + i) for i, sampling in enumerate(samplings)]
    together = sample(logits, rows)
    for i, row in enumerate(rows):
        assert sample(logits[i : i + 1], [row]) == [together[i]]
        if row.greedy:
            assert together[i] == int(logits[i].argmax())
        else:
            token, distance = reference(logits[i], row)
            assert together[i] == token or distance < 1e-5


def test_draws_follow_the_distribution() -> None:
    logits = logits_of(1, 12, seed=3)
    sampling = Sampling(temperature=0.8, top_k=6, top_p=0.97, seed=5)
    draws = 4000
    seen = Counter(sample(logits.expand(draws, -1), [SampleRow(sampling, i) for i in range(draws)]))
    chances = kept(logits[0], sampling)
    assert set(seen) <= set(chances)
    chi_square = sum((seen[token] - draws * chance) ** 2 / (draws * chance) for token, chance in chances.items())
    assert chi_square < 20.5  # 99.9 % with 5 degrees of freedom


def test_a_flat_distribution_needs_more_than_the_first_candidates() -> None:
    logits = torch.zeros(1, 6000)
    logits[0] = -torch.arange(6000) * 1e-4
    sampling = Sampling(temperature=1.0, top_p=0.9)
    found = set(sample(logits.expand(200, -1), [SampleRow(sampling, i) for i in range(200)]))
    allowed = kept(logits[0], sampling)
    assert found <= set(allowed)
    assert max(token or 0 for token in found) > 3000


@pytest.mark.parametrize("temperature", [1e-38, 1e-45, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = logits_of(1, 300, scale=0.01)
    assert sample(logits, [SampleRow(Sampling(temperature=temperature, seed=1), 0)]) == [int(logits.argmax())]


def test_a_small_temperature_does_not_overflow() -> None:
    logits = logits_of(1, 300, scale=1000.0)
    assert sample(logits, [SampleRow(Sampling(temperature=1e-4, seed=1), 0)]) == [int(logits.argmax())]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("vocabulary", [10, 600])
def test_non_finite_rows_fail_alone(temperature: float, vocabulary: int) -> None:
    logits = logits_of(5, vocabulary)
    rows = [SampleRow(Sampling(temperature=temperature, seed=i), 0) for i in range(5)]
    clean = sample(logits, rows)
    logits[1, 4] = torch.nan
    logits[2, vocabulary - 1] = torch.inf
    logits[3] = -torch.inf
    assert sample(logits, rows) == [clean[0], None, None, None, clean[4]]


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((1, 600), -torch.inf)
    logits[0, [3, 599]] = 0.0
    rows = [SampleRow(Sampling(temperature=1.0, seed=9), i) for i in range(64)]
    assert set(sample(logits.expand(64, -1), rows)) == {3, 599}


def test_logits_are_left_as_they_are() -> None:
    logits = logits_of(4, 700)
    before = logits.clone()
    sample(logits, [SampleRow(Sampling(temperature=1.0, top_k=5, top_p=0.9, min_p=0.1), i) for i in range(4)])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("vocabulary", [64, 300, 20_000, 49_157])
@pytest.mark.parametrize("count", [1, 20, 64, 256])
def test_the_leading_logits_are_those_of_topk(vocabulary: int, count: int) -> None:
    logits = logits_of(5, vocabulary)
    logits[1, 7:] = -torch.inf
    logits[2] = 1.5
    logits[3, ::2] = 3.0
    count = min(count, vocabulary)
    values, columns = leading(logits, count)
    assert torch.equal(values, logits.topk(count, dim=1).values)
    assert torch.equal(values, logits.gather(1, columns))
    assert all(len(set(row)) == count for row in columns.tolist())
    alone = leading(logits[3:4], count)
    assert torch.equal(alone[1], columns[3:4])


def test_the_kernels_sums_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    library = load_library("auto")
    if library is None:
        pytest.skip("no compiler here")
    logits = logits_of(4, 5003, scale=6.0)
    logits[1, 100:4000] = -torch.inf
    highest, temperature = logits.amax(dim=1), torch.tensor([1.0, 0.3, 2.0, 1e-4])
    native = exp_sums(logits, highest, temperature)
    rows = [SampleRow(Sampling(temperature=0.9, top_p=0.7 + 0.1 * (i % 4), seed=i), i) for i in range(200)]
    many = logits[:1].expand(200, -1).contiguous()
    tokens = sample(many, rows)
    monkeypatch.setattr(row_math, "loaded_library", lambda: None)
    torch.testing.assert_close(native, exp_sums(logits, highest, temperature), rtol=1e-5, atol=1e-12)
    assert tokens == sample(many, rows)
