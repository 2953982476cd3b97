"""A decoder with its paged cache: the ``ModelRunner`` of devices whose kernels are torch operators."""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from coldplate_engine.batch import StepBatch
from coldplate_engine.kernels.step import NativeAttention, NativeStep
from coldplate_engine.models.attention import GROUP_BYTES, AttentionKernel, PagedAttention, StepPlan
from coldplate_engine.models.decoder import Decoder
from coldplate_engine.models.fused_step import fused_step
from coldplate_engine.models.kv_cache import KvCache
from coldplate_engine.models.layers import Linear, MakeLinear
from coldplate_engine.models.registry import family_of
from coldplate_engine.models.step_arrays import StepArrays
from coldplate_engine.runner import ModelError, ModelFacts, ReportProgress
from coldplate_engine.step_timer import StepTimer
from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.convert import QuantizeTo
from coldplate_engine.weights.quantized import Weight
from coldplate_engine.weights.reader import CheckpointReader


class DecoderRunner:
    """Runs steps: as one call of the kernels where they can, else operator by operator.

    ``before_step`` is called on the thread that computes, at the start of each. ``library`` None: torch alone.
    """

    def __init__(
        self,
        decoder: Decoder,
        facts: ModelFacts,
        dtype: torch.dtype,
        before_step: Callable[[], None],
        library: ctypes.CDLL | None = None,
    ) -> None:
        self.decoder, self.facts, self.dtype = decoder, facts, dtype
        self._before_step = before_step
        self._library = library
        self._cache: KvCache | None = None
        self._fused: NativeStep | None = None
        self._attentions: dict[tuple[int, float], NativeAttention] = {}

    def kv_bytes_per_token(self) -> int:
        shape = self.decoder.shape
        return shape.layers * 2 * shape.kv_heads * shape.head_dim * self.dtype.itemsize

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """Allocate the pool, once. Raises the allocator's error where it does not fit."""
        if self._cache is not None:
            raise RuntimeError("the KV pool is allocated already")
        shape = self.decoder.shape
        cache = KvCache(shape.layers, num_blocks, block_size, shape.kv_heads, shape.head_dim, self.dtype)
        longest = -(-self.facts.max_model_len // block_size)
        cache.reserve_scratch(max(longest, GROUP_BYTES // cache.block_bytes))
        self._cache = cache
        if self._library is not None:
            self._fused = fused_step(self._library, self.decoder, cache)

    def workspace_bytes(self, tokens: int, rows: int) -> int:
        """See ``ModelRunner.workspace_bytes``: hidden states, projections and a four times wider MLP in float32, logits
        twice, and the scratch of attention."""
        shape = self.decoder.shape
        width = self.decoder.embedding.shape[1]
        longest_bytes = self.facts.max_model_len * 2 * shape.kv_heads * shape.head_dim * self.dtype.itemsize
        return 4 * (tokens * 20 * width + 2 * rows * shape.vocabulary) + max(longest_bytes, GROUP_BYTES)

    def read_blocks(self, blocks: list[int]) -> Tensor:
        """See ``ModelRunner.read_blocks``."""
        assert self._cache is not None
        with torch.inference_mode():
            return self._cache.read_blocks(torch.tensor(blocks))

    def write_blocks(self, blocks: list[int], data: Tensor) -> None:
        """See ``ModelRunner.write_blocks``."""
        assert self._cache is not None
        with torch.inference_mode():
            self._cache.write_blocks(torch.tensor(blocks), data)

    def execute(self, batch: StepBatch, timer: StepTimer) -> Tensor:
        """See ``ModelRunner.execute``. Token ids must lie in the vocabulary, positions below ``max_model_len``."""
        if self._cache is None:
            raise RuntimeError("allocate_kv must come before the first step")
        self._before_step()
        if not batch.slices:
            return torch.empty(0, self.decoder.shape.vocabulary)
        if self._fused is None:
            return self._by_operators(batch, self._cache, timer)
        with timer.part("host_prep"):
            arrays = StepArrays(batch.slices, self._cache.block_size)
        with timer.part("device"):
            return self._fused(arrays)

    @torch.inference_mode()
    def _by_operators(self, batch: StepBatch, cache: KvCache, timer: StepTimer) -> Tensor:
        with timer.part("host_prep"):
            plan = StepPlan(batch, cache)
        with timer.part("device"):
            attention = PagedAttention(plan, self._attention_kernel(plan))
            hidden = self.decoder.hidden(plan.token_ids, plan.positions, attention)
            if not len(plan.logit_rows):
                return torch.empty(0, self.decoder.shape.vocabulary)
            return self.decoder.logits(hidden[plan.logit_rows]).float()

    def _attention_kernel(self, plan: StepPlan) -> AttentionKernel | None:
        library = self._library
        if library is None:
            return None
        arrays = StepArrays(plan.slices, plan.cache.block_size)
        planned: set[tuple[int, float]] = set()

        def attend(layer: int, queries: Tensor, keys_values: Tensor, scale: float, window: int | None) -> Tensor:
            kind = (queries.shape[1], scale)
            if kind not in self._attentions:
                self._attentions[kind] = NativeAttention(library, plan.cache, *kind)
            if kind not in planned:
                self._attentions[kind].plan(arrays)
                planned.add(kind)
            return self._attentions[kind](layer, queries, keys_values, window)

        return attend


def load_decoder(
    directory: Path,
    dtype: torch.dtype,
    max_model_len: int | None,
    make_linear: MakeLinear,
    progress: ReportProgress,
    before_step: Callable[[], None],
    quantize: QuantizeTo | None = None,
    library: ctypes.CDLL | None = None,
) -> DecoderRunner:
    """Load a model directory. Raises ``ModelError`` naming the file, the tensor or the setting that is unusable."""
    config = ModelConfig(directory)
    family = family_of(config)
    shape = family.describe(config)
    if max_model_len is not None and not 1 <= max_model_len <= shape.max_positions:
        raise ModelError(
            f"max_model_len {max_model_len} is out of range: {directory} has positions for 1 to {shape.max_positions}"
        )
    max_positions = max_model_len or shape.max_positions
    linear_bytes, pack_s = 0, 0.0
    began = time.perf_counter()

    def counted_linear(weight: Weight, bias: Tensor | None) -> Linear:
        nonlocal linear_bytes, pack_s
        start = time.perf_counter()
        linear = make_linear(weight, bias)
        pack_s += time.perf_counter() - start
        linear_bytes += linear.weight_bytes
        return linear

    with torch.inference_mode(), CheckpointReader(config, dtype, progress, quantize) as weights:
        decoder = family(config, weights, counted_linear, max_positions)
        facts = ModelFacts(
            architecture=config.architecture,
            revision=weights.revision(),
            parameter_count=weights.parameter_count,
            vocabulary_size=shape.vocabulary,
            max_model_len=max_positions,
            dtype=str(dtype).removeprefix("torch."),
            quantization=weights.quantization,
            end_of_text_ids=config.end_of_text_ids,
            weight_bytes=linear_bytes + decoder.own_bytes,
            load_phases=(
                ("read", weights.clock.waited_s),
                ("convert", time.perf_counter() - began - weights.clock.waited_s - pack_s),
                ("pack", pack_s),
            ),
            read_bytes=weights.clock.bytes,
            read_mb_per_s=weights.clock.mb_per_s,
        )
    progress("weights", 1.0)
    return DecoderRunner(decoder, facts, dtype, before_step, library)
