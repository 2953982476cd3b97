"""From a decoder to the kernels' fused step, where the decoder is of the kind that has one."""

import ctypes

import torch
from torch import Tensor

from coldplate_engine.kernels.linear import KernelLinear
from coldplate_engine.kernels.step import ACTIVATIONS, PANEL, STORED, DecoderParts, LayerParts, NativeStep
from coldplate_engine.models.decoder import Decoder
from coldplate_engine.models.dense import DenseDecoder, DenseLayer
from coldplate_engine.models.kv_cache import KvCache
from coldplate_engine.models.mlp import GatedMlp


def fused_step(library: ctypes.CDLL, decoder: Decoder, cache: KvCache) -> NativeStep | None:
    """The whole step as one call, or None: layers of another kind, or linears that are not the kernels'."""
    if not isinstance(decoder, DenseDecoder) or not isinstance(decoder.head, KernelLinear):
        return None
    first = decoder.layers[0]
    epsilon, activation = decoder.norm.epsilon, first.spec.activation
    if activation not in ACTIVATIONS or decoder.embedding.dtype not in STORED:
        return None
    layers: list[LayerParts] = []
    for layer in decoder.layers:
        parts = _layer_parts(layer)
        same = (layer.heads, layer.scale, layer.spec.inner, layer.spec.activation, layer.spec.epsilon)
        if parts is None or same != (first.heads, first.scale, first.spec.inner, activation, epsilon):
            return None
        layers.append(parts)
    parts_of_decoder = DecoderParts(
        layers=layers,
        head=decoder.head,
        embedding=decoder.embedding,
        norm=_float(decoder.norm.weight),
        rotation=torch.view_as_real(decoder.rotation.squeeze(1)).float().contiguous(),
        heads=first.heads,
        activation=activation,
        epsilon=epsilon,
        scale=first.scale,
    )
    return NativeStep(library, parts_of_decoder, cache)


def _layer_parts(layer: DenseLayer) -> LayerParts | None:
    mlp = layer.mlp
    if not isinstance(mlp, GatedMlp):
        return None
    qkv, out, gate_up, down = layer.qkv, layer.out, mlp.gate_up, mlp.down
    if not (
        isinstance(qkv, KernelLinear)
        and isinstance(out, KernelLinear)
        and isinstance(gate_up, KernelLinear)
        and isinstance(down, KernelLinear)
        and gate_up.out_features % (2 * PANEL) == 0
    ):
        return None
    return LayerParts(
        qkv=qkv,
        out=out,
        gate_up=gate_up,
        down=down,
        attention_norm=_float(layer.attention_norm.weight),
        mlp_norm=_float(layer.mlp_norm.weight),
        q_norm=None if layer.q_norm is None else _float(layer.q_norm.weight),
        k_norm=None if layer.k_norm is None else _float(layer.k_norm.weight),
        window=layer.window,
    )


def _float(weight: Tensor) -> Tensor:
    return weight.float().contiguous()
