"""The engine's attention behind transformers' attention interface.

Modules of transformers call the registered function with one packed row of tokens, whatever the streams are; the step
in progress says which rows belong together. A first *recorded* forward learns what each layer asks for: its heads,
its window (by the mask the model orders, as only that is what transformers obeys), its score cap.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from coldplate_engine.models.attention import PagedAttention

NAME = "coldplate"
_PROBED_TOKENS = 32


class Unsupported(Exception):
    """What the paged attention cannot do, in words that follow the architecture's name."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What one layer asks of attention."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None
    softcap: float | None


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask as ordered by a model: how many tokens a token sees, itself included; None is all before it.

    ``known``: it is such a causal or sliding mask. A model may order one of another kind that no layer uses.
    """

    window: int | None
    known: bool


class Recording:
    """Layers in the order of their numbers, after one forward."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerCall] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: object, softcap: float | None
    ) -> Tensor:
        """Zeros in the shape of an answer. Raises ``Unsupported``."""
        if layer in self.layers:
            raise Unsupported(f"attends twice in layer {layer}")
        if mask is not None and not isinstance(mask, Mask):
            raise Unsupported(f"makes a mask of its own in layer {layer}")
        if mask is not None and not mask.known:
            raise Unsupported("attends by a mask that is neither causal nor a sliding window")
        window = None if mask is None else mask.window
        self.layers[layer] = LayerCall(query.shape[1], key.shape[1], key.shape[3], value.shape[3], window, softcap)
        return query.new_zeros(query.shape[2], query.shape[1] * value.shape[3])


class PagedStep:
    """A step on the paged cache: ``head_dim`` is the cache's, to which narrower heads are padded with zeros."""

    def __init__(self, attention: PagedAttention, layers: list[LayerCall], head_dim: int) -> None:
        self.attention, self.layers, self.head_dim = attention, layers, head_dim

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        call = self.layers[layer]
        query, key, value = (self._padded(heads[0].transpose(0, 1)) for heads in (query, key, value))
        keys_values = torch.cat([key, value], dim=1)  # [N, 2 * kv_heads, head_dim]
        out = self.attention(layer, query.contiguous(), keys_values, scale, call.window, call.softcap)
        if call.value_dim == self.head_dim:
            return out
        return out.view(-1, call.heads, self.head_dim)[:, :, : call.value_dim].flatten(1)

    def _padded(self, heads: Tensor) -> Tensor:
        missing = self.head_dim - heads.shape[2]
        return F.pad(heads, (0, missing)) if missing else heads


_current: list[Recording | PagedStep] = []


@contextmanager
def current(step: Recording | PagedStep) -> Iterator[None]:
    """Let the attention of transformers' modules go to ``step``. One thread steps a process, so this is its own."""
    _current.append(step)
    try:
        yield
    finally:
        _current.pop()


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    scaling: float | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Called by transformers: ``[1, heads, N, dim]`` each; returns ``[1, N, heads, dim]`` as it expects."""
    step = _current[-1]
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise Unsupported("does not number its attention layers")
    for name in ("s_aux", "position_bias", "indices"):
        if options.get(name) is not None:
            raise Unsupported(f"uses {name.replace('s_aux', 'attention sinks')} in its attention")
    if isinstance(step, Recording):
        out = step.attend(layer, query, key, value, attention_mask, softcap)
    else:
        out = step.attend(layer, query, key, value, query.shape[3] ** -0.5 if scaling is None else scaling)
    return out.view(1, query.shape[2], query.shape[1], -1), None


def _mask(*, mask_function: Any, local_size: int | None = None, **_: Any) -> Mask | None:
    """Called by transformers where it would build a mask."""
    if isinstance(_current[-1], PagedStep):
        return None
    span = local_size or _PROBED_TOKENS
    query, keys = torch.tensor(2 * span), torch.arange(3 * span)
    zero = torch.tensor(0)
    wanted = (keys <= query) & (keys > query - (local_size or 3 * span))
    return Mask(local_size, torch.equal(mask_function(zero, zero, query, keys).expand(keys.shape), wanted))


def register() -> None:
    """Make the interface known to transformers under ``NAME``."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _mask)
