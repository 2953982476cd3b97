"""What keeps an architecture off the generic path, told from its config and class, or from its answers."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor

from coldplate_engine.batch import StepBatch, StreamSlice
from coldplate_engine.models.attention import PagedAttention, StepPlan
from coldplate_engine.models.decoder import Decoder
from coldplate_engine.models.generic.interface import Unsupported
from coldplate_engine.models.kv_cache import KvCache

_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def check_architecture(config: Any, model_class: Any) -> None:
    """Raises ``Unsupported``. ``config`` and ``model_class`` are transformers'."""
    if config.is_encoder_decoder:
        raise Unsupported("is an encoder-decoder")
    if model_class._is_stateful:
        raise Unsupported("keeps a recurrent state, which the paged cache cannot hold")
    kinds = set(getattr(config, "layer_types", None) or ()) | set(getattr(config, "layers_block_type", None) or ())
    if kinds - _LAYER_TYPES:
        raise Unsupported(f"has layers of type {', '.join(sorted(map(str, kinds - _LAYER_TYPES)))}")
    if not model_class._supports_attention_backend:
        raise Unsupported("does not attend through transformers' attention interface")
    if not getattr(config, "is_causal", True):
        raise Unsupported("is not causal")


def check_positions(config: Any, positions: int) -> None:
    """LongRoPE turns all positions of a batch by its longest stream: right only while none can be long.

    ``positions`` as served. Raises ``Unsupported``.
    """
    table = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in table.values() if isinstance(value, dict)]
    for rope in nested or [table]:
        if rope.get("rope_type") == "longrope" and positions > rope["original_max_position_embeddings"]:
            raise Unsupported(
                f"has longrope, supported up to {rope['original_max_position_embeddings']} positions: "
                "set --max-model-len"
            )


def check_answers(decoder: Decoder, reference: list[Tensor], prompts: list[list[int]], dtype: torch.dtype) -> None:
    """Run ``prompts`` through a small paged cache, in chunks and together, and hold the logits against transformers'.

    ``reference``: one ``[tokens, vocabulary]`` a prompt. Raises ``Unsupported`` where they differ: then the
    architecture does something that its attention interface does not tell.
    """
    shape, block_size = decoder.shape, 4
    blocks = -(-max(map(len, prompts)) // block_size)
    cache = KvCache(shape.layers, blocks * len(prompts), block_size, shape.kv_heads, shape.head_dim, dtype)
    cache.reserve_scratch(blocks * len(prompts))
    got: list[list[Tensor]] = [[] for _ in prompts]
    for start, end in ((0, 7), (7, 8), (8, 13), (13, 14), (14, 15)):
        slices = [
            StreamSlice(stream, ids[start:end], start, list(range(stream * blocks, (stream + 1) * blocks)), end - start)
            for stream, ids in enumerate(prompts)
        ]
        plan = StepPlan(StepBatch(slices), cache)
        hidden = decoder.hidden(plan.token_ids, plan.positions, PagedAttention(plan))
        logits = decoder.logits(hidden[plan.logit_rows]).float()
        for stream, rows in enumerate(torch.split(logits, end - start)):
            got[stream].append(rows)
    for answered, wanted in zip(got, reference, strict=True):
        _compare(torch.cat(answered), wanted.float(), dtype)


def _compare(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    likeness = F.cosine_similarity(got, wanted).mean().item()
    worst = ((got - wanted).abs().max() / wanted.abs().max()).item()
    exact = dtype == torch.float32
    # In half precision a router may pick another expert for some token: judge the whole, not the worst value.
    if not (worst < 1e-3 if exact else likeness > 0.97):
        raise Unsupported(
            f"answers otherwise through the paged cache than through transformers (likeness {likeness:.4f})"
        )
