"""A causal model of transformers as the engine's decoder."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from coldplate_engine.models.attention import PagedAttention
from coldplate_engine.models.decoder import DecoderShape
from coldplate_engine.models.generic.interface import LayerCall, PagedStep, Recording, Unsupported, current
from coldplate_engine.models.layers import Linear, MakeLinear


class GenericDecoder:
    """See ``Decoder``. ``model`` is a ``…ForCausalLM`` whose attention is the engine's."""

    def __init__(self, model: Any, vocabulary: int, max_positions: int) -> None:
        self.model = model
        self._prefix: str = model.base_model_prefix
        self._body: nn.Module = getattr(model, self._prefix)
        self.layers = self._record()
        self.shape = DecoderShape(
            layers=len(self.layers),
            kv_heads=self.layers[0].kv_heads,
            head_dim=max(max(layer.key_dim, layer.value_dim) for layer in self.layers),
            vocabulary=vocabulary,
            max_positions=max_positions,
        )
        self._given = _GivenHidden()
        setattr(model, self._prefix, self._given)

    @property
    def embedding(self) -> Tensor:
        with self.whole() as model:
            weight: Tensor = model.get_input_embeddings().weight
            return weight

    @property
    def own_bytes(self) -> int:
        with self.whole() as model:
            return sum(parameter.nbytes for parameter in model.parameters())

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: PagedAttention) -> Tensor:
        with current(PagedStep(attention, self.layers, self.shape.head_dim)):
            out = self._body(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        self._given.hidden = hidden[None]
        ids = torch.zeros(1, len(hidden), dtype=torch.int64)
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits[0]
        return logits

    @contextmanager
    def whole(self) -> Iterator[Any]:
        """The model with its body in place, as transformers knows it."""
        setattr(self.model, self._prefix, self._body)
        try:
            yield self.model
        finally:
            setattr(self.model, self._prefix, self._given)

    def _record(self) -> list[LayerCall]:
        """What each layer asks for. Raises ``Unsupported`` where one cache cannot serve all of them."""
        recording = Recording()
        ids = torch.arange(1, 6)[None]
        with current(recording):
            self._body(input_ids=ids, position_ids=ids, use_cache=False)
        layers = recording.layers
        if sorted(layers) != list(range(len(layers))) or not layers:
            raise Unsupported(f"attends in layers {sorted(layers)}, not in all from the first on")
        for index, layer in layers.items():
            if layer.kv_heads != layers[0].kv_heads or layer.heads % layer.kv_heads:
                raise Unsupported(f"has {layer.kv_heads} key heads in layer {index}, {layers[0].kv_heads} in layer 0")
        return [layers[index] for index in range(len(layers))]


class _GivenHidden(nn.Module):
    """Stands in for the body, so that the model's own forward makes logits of states that are there already."""

    hidden: Tensor

    @property
    def decoder(self) -> "_GivenHidden":
        return self  # some models call their body's decoder

    def forward(self, *_: Any, **__: Any) -> "_BodyOutput":
        return _BodyOutput(self.hidden)


class _BodyOutput:
    """What a body returns: its states, and None for everything else a model may pass on."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, _: str) -> None:
        return None

    def __getitem__(self, _: int) -> Tensor:
        return self.last_hidden_state


class EngineLinear(nn.Module):
    """A linear of the engine in the place of ``nn.Linear``."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


def replace_linears(model: nn.Module, make_linear: MakeLinear, kept: nn.Module | None) -> None:
    """Give the weights of all plain linears to the device's own, one by one, besides ``kept``."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child is not kept:
                bias = None if child.bias is None else child.bias.detach()
                setattr(parent, name, EngineLinear(make_linear(child.weight.detach(), bias)))
