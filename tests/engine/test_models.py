"""The lean decoders against transformers, in float32, on tiny random checkpoints."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.devices.cpu import CpuDevice
from coldplate_engine.models import attention
from coldplate_engine.models.decoder_runner import DecoderRunner
from coldplate_engine.step_timer import StepTimer
from support.random_models import GENERIC_VARIANTS, GPT2, LLAMA, VARIANTS, VOCABULARY, save_model

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script.:DeprecationWarning")  # of GPT-BigCode's module

BLOCK, BLOCKS = 4, 160


@dataclass
class Pair:
    """One checkpoint in both implementations."""

    reference: Any
    runner: DecoderRunner
    path: Path

    def expected(self, token_ids: list[int]) -> torch.Tensor:
        """Logits behind every token, ``[N, vocabulary]``."""
        with torch.inference_mode():
            logits: torch.Tensor = self.reference(torch.tensor([token_ids])).logits[0]
            return logits

    def step(self, *slices: StreamSlice) -> torch.Tensor:
        return self.runner.execute(StepBatch(list(slices)), StepTimer())


def load(path: Path, dtype: str = "float32", max_model_len: int | None = None) -> DecoderRunner:
    return CpuDevice(threads=1).load(path, dtype, max_model_len, lambda _phase, _share: None)


FEW = ("llama-grouped", "mistral-window", "qwen3-moe", "gpt2")  # for what does not depend on a family's options
few_variants = pytest.mark.parametrize("pair", FEW, indirect=True, scope="module")


ALL = VARIANTS | GENERIC_VARIANTS
FAST = {*FEW, "llama-rope-yarn", "qwen2-window", "qwen3", "gpt-neox", "gemma2-capped-window"}
some_fast = pytest.mark.parametrize(
    "pair",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in ALL],
    indirect=True,
    scope="module",
)


@pytest.fixture(scope="module", params=list(ALL))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    kind, options = ALL[request.param]
    path = tmp_path_factory.mktemp("model")
    reference = save_model(kind, options, path)
    runner = load(path)
    runner.allocate_kv(BLOCKS, BLOCK)
    return Pair(reference, runner, path)


def tables(lengths: list[int], seed: int) -> Iterator[list[int]]:
    """Disjoint block tables in shuffled order."""
    free = list(range(BLOCKS))
    random.Random(seed).shuffle(free)
    for length in lengths:
        count = -(-length // BLOCK)
        yield free[:count]
        del free[:count]


def tokens(count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(count)]


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(got.argmax(-1), expected.argmax(-1))


def test_prefill_chunks_and_decodes_give_the_same_logits(pair: Pair) -> None:
    ids = tokens(50, seed=1)
    expected = pair.expected(ids)
    (table,) = tables([len(ids)], seed=1)
    start = 0
    for size in (17, 1, 3, 16, 1, 1, 11):
        got = pair.step(StreamSlice(0, ids[start : start + size], start, table, 1))
        assert_same(got, expected[start + size - 1 : start + size])
        start += size


@some_fast
def test_greedy_in_a_mixed_batch_joined_at_different_moments(pair: Pair) -> None:
    prompts = [tokens(size, seed=size) for size in (1, 30, 7, 63, 16, 2)]
    new = 12
    with torch.inference_mode():
        wanted = [
            pair.reference.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                do_sample=False,
                min_new_tokens=new,
                max_new_tokens=new,
                pad_token_id=0,
                eos_token_id=VOCABULARY + 1,
            )[0].tolist()
            for prompt in prompts
        ]
    block_tables = list(tables([len(prompt) + new for prompt in prompts], seed=2))
    sequences = [list(prompt) for prompt in prompts]
    cached = [0] * len(prompts)
    for step in range(200):
        slices = []
        for stream, sequence in enumerate(sequences):
            if step >= 3 * stream and len(sequence) < len(wanted[stream]):
                chunk = sequence[cached[stream] :][:20]
                ends = cached[stream] + len(chunk) == len(sequence)
                slices.append(StreamSlice(stream, chunk, cached[stream], block_tables[stream], int(ends)))
        if not slices and step > 3 * len(prompts):
            break
        slices.sort(key=lambda piece: len(piece.token_ids) > 1)
        batch = StepBatch(slices)
        logits = pair.runner.execute(batch, StepTimer())
        assert logits.shape == (batch.logit_rows, VOCABULARY)
        for piece in slices:
            cached[piece.stream] += len(piece.token_ids)
        for piece, row in zip((piece for piece in batch.slices if piece.logit_tokens), logits, strict=True):
            sequences[piece.stream].append(int(row.argmax()))
    assert sequences == wanted


@few_variants
def test_only_wanted_rows_come_back(pair: Pair) -> None:
    first, second = tables([8, 8], seed=3)
    got = pair.step(StreamSlice(0, [5], 0, first, 0), StreamSlice(1, [6, 7], 0, second, 1))
    assert_same(got, pair.expected([6, 7])[-1:])
    assert pair.step(StreamSlice(0, [5, 6], 0, first, 0)).shape == (0, VOCABULARY)
    assert pair.step().shape == (0, VOCABULARY)


@few_variants
def test_blocks_that_held_nan_harm_no_later_stream(pair: Pair) -> None:
    (table,) = tables([24], seed=4)
    cache = pair.runner._cache
    assert cache is not None
    cache.pool.fill_(float("nan"))
    ids = tokens(22, seed=4)
    expected = pair.expected(ids)
    assert_same(pair.step(StreamSlice(0, ids[:9], 0, table, 1)), expected[8:9])
    assert_same(pair.step(StreamSlice(0, ids[9:18], 9, table, 1)), expected[17:18])
    for position in range(18, 22):
        got = pair.step(StreamSlice(0, ids[position : position + 1], position, table, 1))
        assert_same(got, expected[position : position + 1])


@few_variants
def test_a_stream_with_nan_harms_no_neighbour(pair: Pair) -> None:
    embedding = pair.runner.decoder.embedding
    with torch.inference_mode():
        kept = embedding[90].clone()
        embedding[90] = float("nan")
    try:
        bad, good, third = tables([40, 20, 33], seed=5)
        ids = [token % 90 for token in tokens(33, seed=5)]
        expected = pair.expected(ids)
        got = pair.step(
            StreamSlice(0, [1, 90, 3], 0, bad, 1),
            StreamSlice(1, ids[:10], 0, good, 1),
            StreamSlice(2, ids[:32], 0, third, 1),
        )
        assert got[0].isnan().all()
        assert_same(got[1:], expected[[9, 31]])
        got = pair.step(
            StreamSlice(0, [4], 3, bad, 1),
            StreamSlice(1, ids[10:11], 10, good, 1),
            StreamSlice(2, ids[32:33], 32, third, 1),
        )
        assert got[0].isnan().all()
        assert_same(got[1:], expected[[10, 32]])
    finally:
        with torch.inference_mode():
            embedding[90] = kept


@settings(max_examples=15, deadline=None)
@given(starts=st.lists(st.integers(1, 90), min_size=1, max_size=6), group_blocks=st.integers(1, 40))
def test_any_grouping_of_decodes_is_right(tmp_path_factory: Any, starts: list[int], group_blocks: int) -> None:
    pair = _small_pair(tmp_path_factory)
    cache = pair.runner._cache
    assert cache is not None
    block_tables = list(tables([start + 1 for start in starts], seed=6))
    sequences = [tokens(start + 1, seed=start) for start in starts]
    for stream, ids in enumerate(sequences):
        pair.step(StreamSlice(stream, ids[:-1], 0, block_tables[stream], 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "GROUP_BYTES", group_blocks * cache.block_bytes)
        got = pair.step(
            *(StreamSlice(s, ids[-1:], len(ids) - 1, block_tables[s], 1) for s, ids in enumerate(sequences))
        )
    assert_same(got, torch.cat([pair.expected(ids)[-1:] for ids in sequences]))


_SMALL: list[Pair] = []


def _small_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    if not _SMALL:
        path = tmp_path_factory.mktemp("small")
        reference = save_model("llama", LLAMA | {"num_hidden_layers": 1}, path)
        _SMALL.append(Pair(reference, load(path), path))
        _SMALL[0].runner.allocate_kv(BLOCKS, BLOCK)
    return _SMALL[0]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precisions_stay_near(tmp_path: Path, kind: str, dtype: str) -> None:
    reference = save_model(kind, LLAMA if kind == "llama" else GPT2, tmp_path)
    runner = load(tmp_path, dtype)
    assert runner.facts.dtype == dtype
    runner.allocate_kv(BLOCKS, BLOCK)
    pair = Pair(reference, runner, tmp_path)
    ids = tokens(21, seed=7)
    (table,) = tables([21], seed=7)
    pair.step(StreamSlice(0, ids[:12], 0, table, 0))
    pair.step(StreamSlice(0, ids[12:20], 12, table, 0))
    got = pair.step(StreamSlice(0, ids[20:], 20, table, 1))
    assert got.dtype == torch.float32
    wanted = pair.expected(ids)[-1:]
    assert torch.nn.functional.cosine_similarity(got, wanted).item() > 0.99


def test_facts_and_kv_size(tmp_path: Path) -> None:
    reference = save_model("llama", LLAMA | {"tie_word_embeddings": True, "eos_token_id": [2, 5]}, tmp_path)
    runner = load(tmp_path, max_model_len=64)
    facts = runner.facts
    assert facts.architecture == "LlamaForCausalLM"
    assert facts.parameter_count == reference.num_parameters()
    assert (facts.vocabulary_size, facts.max_model_len, facts.dtype) == (VOCABULARY, 64, "float32")
    assert facts.end_of_text_ids == {2, 5}
    assert facts.weight_bytes > 4 * facts.parameter_count  # the tied head has a packed copy
    assert runner.kv_bytes_per_token() == 2 * 2 * 2 * 8 * 4
    with pytest.raises(RuntimeError, match="allocate_kv"):
        runner.execute(StepBatch([StreamSlice(0, [1], 0, [0], 1)]), StepTimer())
    runner.allocate_kv(2, 16)
    with pytest.raises(RuntimeError, match="already"):
        runner.allocate_kv(2, 16)


def test_the_timer_knows_the_parts(tmp_path: Path) -> None:
    save_model("gpt2", GPT2, tmp_path)
    runner = load(tmp_path)
    runner.allocate_kv(4, 16)
    timer = StepTimer()
    runner.execute(StepBatch([StreamSlice(0, [1, 2], 0, [3], 1)]), timer)
    assert timer.seconds["host_prep"] > 0
    assert timer.seconds["device"] > 0
