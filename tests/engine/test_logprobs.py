"""Log-probabilities against torch's log_softmax in double precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate_engine.logprobs import token_logprobs


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([7, 256, 700]),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 20)), min_size=1, max_size=6),
    st.integers(0, 99),
)
def test_equal_to_log_softmax_alone_and_in_a_batch(vocabulary: int, wanted: list[tuple[int, int]], seed: int) -> None:
    logits = torch.randn(len(wanted), vocabulary, generator=torch.Generator().manual_seed(seed)) * 4
    expected = logits.double().log_softmax(dim=1)
    rows, tokens, counts = list(range(len(wanted))), [t for t, _ in wanted], [c for _, c in wanted]
    found = token_logprobs(logits, rows, tokens, counts)
    for row, item in enumerate(found):
        assert item.token_id == tokens[row]
        assert item.logprob == pytest.approx(float(expected[row, tokens[row]]), abs=1e-5)
        values, ids = expected[row].topk(min(counts[row], vocabulary))
        assert [token for token, _ in item.alternatives] == ids.tolist()
        assert [value for _, value in item.alternatives] == pytest.approx(values.tolist(), abs=1e-5)
        assert token_logprobs(logits, [row], [tokens[row]], [counts[row]]) == [item]


def test_equals_are_in_the_order_of_their_ids() -> None:
    (item,) = token_logprobs(torch.zeros(1, 4), [0], [2], [4])
    assert [token for token, _ in item.alternatives] == [0, 1, 2, 3]


def test_masked_tokens_have_no_probability() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0]])
    (item,) = token_logprobs(logits, [0], [1], [3])
    assert item.logprob == -torch.inf
    assert item.alternatives[-1] == (1, -torch.inf)
