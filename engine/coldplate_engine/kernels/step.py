"""Attention and the fused decoder step of the kernels, as Python objects. Structures as in csrc/step.h."""

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coldplate_engine.kernels.library import PackedStruct
from coldplate_engine.kernels.linear import KernelLinear
from coldplate_engine.models.kv_cache import KvCache
from coldplate_engine.models.step_arrays import StepArrays

PANEL = 16  # output columns that are packed together: kPanel of csrc/linear.h
STORED = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # CacheType of csrc/attention.h
ACTIVATIONS = {"silu": 0, "swish": 0, "gelu_new": 1, "gelu_pytorch_tanh": 1, "gelu": 2, "relu": 3}
PARTS = ("embed", "norm", "qkv", "attention", "out", "gate_up", "down", "head")  # StepPart of csrc/step.h

_Pointer = ctypes.c_void_p
_int, _float = ctypes.c_int32, ctypes.c_float


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("qkv", "out", "gate", "up", "down")),
        *((name, _Pointer) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
        ("window", _int),
        ("reserved", _int),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("layers", "head", "embedding", "norm", "rotation", "pool")),
        *((name, _int) for name in ("layer_count", "width", "inner", "heads", "kv_heads", "head_dim", "rotated")),
        *((name, _int) for name in ("vocabulary", "embedding_type", "cache_type", "block_size", "activation")),
        ("epsilon", _float),
        ("scale", _float),
    )


@dataclass(frozen=True, slots=True)
class LayerParts:
    """One layer of a dense decoder; norms float32. ``gate_up``: rows of the gate, then of the up projection."""

    qkv: KernelLinear
    out: KernelLinear
    gate_up: KernelLinear
    down: KernelLinear
    attention_norm: Tensor
    mlp_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    window: int | None


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """A dense decoder. ``rotation`` float32 ``[positions, head_dim / 2, 2]``; ``norm`` float32 ``[width]``."""

    layers: Sequence[LayerParts]
    head: KernelLinear
    embedding: Tensor
    norm: Tensor
    rotation: Tensor
    heads: int
    activation: str
    epsilon: float
    scale: float


class NativeStep:
    """All layers of a step in one call."""

    def __init__(self, library: ctypes.CDLL, parts: DecoderParts, cache: KvCache) -> None:
        self._parts, self._cache = parts, cache  # what the addresses below point to
        self._halves = [_halves(library, layer.gate_up) for layer in parts.layers]
        layers = (_Layer * len(parts.layers))(
            *(_layer(layer, *halves) for layer, halves in zip(parts.layers, self._halves, strict=True))
        )
        model = _Model(
            layers=ctypes.addressof(layers),
            head=_address(parts.head),
            embedding=parts.embedding.data_ptr(),
            norm=parts.norm.data_ptr(),
            rotation=parts.rotation.data_ptr(),
            pool=cache.pool.data_ptr(),
            layer_count=len(parts.layers),
            width=parts.head.in_features,
            inner=parts.layers[0].down.in_features,
            heads=parts.heads,
            kv_heads=cache.kv_heads,
            head_dim=cache.head_dim,
            rotated=2 * parts.rotation.shape[1],
            vocabulary=parts.head.out_features,
            embedding_type=STORED[parts.embedding.dtype],
            cache_type=STORED[cache.pool.dtype],
            block_size=cache.block_size,
            activation=ACTIVATIONS[parts.activation],
            epsilon=parts.epsilon,
            scale=parts.scale,
        )
        self._run, self._seconds = library.coldplate_step_run, library.coldplate_step_seconds
        self._step = library.coldplate_step_new(ctypes.addressof(model))
        weakref.finalize(self, library.coldplate_step_delete, self._step)
        self._logits = torch.empty(0, parts.head.out_features)

    def __call__(self, step: StepArrays) -> Tensor:
        """float32 logits ``[wanted rows, vocabulary]``: a view of one buffer, which the next call overwrites."""
        wanted = len(step.logit_rows)
        if wanted > len(self._logits):
            self._logits = torch.empty(wanted, self._logits.shape[1])
        self._run(
            self._step,
            step.tokens.buffer_info()[0],
            step.rows,
            step.slices.buffer_info()[0],
            step.slice_count,
            step.blocks.buffer_info()[0],
            step.logit_rows.buffer_info()[0],
            wanted,
            self._logits.data_ptr(),
        )
        return self._logits[:wanted]

    def seconds(self) -> dict[str, float]:
        """By part, the time of the calling thread since the start."""
        values = (ctypes.c_double * len(PARTS))()
        self._seconds(self._step, ctypes.addressof(values))
        return dict(zip(PARTS, values, strict=True))


class NativeAttention:
    """Attention over ``cache`` for ``heads`` query heads, layer by layer; ``plan`` comes first in every step."""

    def __init__(self, library: ctypes.CDLL, cache: KvCache, heads: int, scale: float) -> None:
        self._cache, self._heads = cache, heads
        self._plan, self._run = library.coldplate_attention_plan, library.coldplate_attention_run
        self._attention = library.coldplate_attention_new(
            cache.pool.data_ptr(),
            STORED[cache.pool.dtype],
            cache.layers,
            cache.kv_heads,
            cache.head_dim,
            cache.block_size,
            heads,
            scale,
        )
        weakref.finalize(self, library.coldplate_attention_delete, self._attention)

    def plan(self, step: StepArrays) -> None:
        """``step`` must stay alive until its last layer has run."""
        self._plan(self._attention, step.slices.buffer_info()[0], step.slice_count, step.blocks.buffer_info()[0])

    def __call__(self, layer: int, queries: Tensor, keys_values: Tensor, window: int | None) -> Tensor:
        """Store and attend: ``[N, heads, head_dim]`` and ``[N, 2 * kv_heads, head_dim]`` to ``[N, heads * head_dim]``.

        Any float dtype; a row's heads must be neighbours in memory or are copied.
        """
        q, kv = _rows(queries), _rows(keys_values)
        out = torch.empty(len(q), self._heads * self._cache.head_dim)
        self._run(
            self._attention,
            layer,
            window or 0,
            q.data_ptr(),
            q.stride(0),
            kv.data_ptr(),
            kv.stride(0),
            out.data_ptr(),
            out.stride(0),
        )
        return out.to(queries.dtype)


def _rows(heads: Tensor) -> Tensor:
    heads = heads.float()
    return heads if heads.stride(2) == 1 and heads.stride(1) == heads.shape[2] else heads.contiguous()


def _address(linear: KernelLinear) -> int:
    return ctypes.addressof(linear.packed)


def _layer(layer: LayerParts, gate: PackedStruct, up: PackedStruct) -> _Layer:
    def pointer(tensor: Tensor | None) -> int | None:
        return None if tensor is None else tensor.data_ptr()

    return _Layer(
        qkv=_address(layer.qkv),
        out=_address(layer.out),
        gate=ctypes.addressof(gate),
        up=ctypes.addressof(up),
        down=_address(layer.down),
        attention_norm=pointer(layer.attention_norm),
        mlp_norm=pointer(layer.mlp_norm),
        q_norm=pointer(layer.q_norm),
        k_norm=pointer(layer.k_norm),
        window=layer.window or 0,
    )


def _halves(library: ctypes.CDLL, linear: KernelLinear) -> tuple[PackedStruct, PackedStruct]:
    """The two halves of a linear's output columns as linears of their own, on the same memory."""
    whole = linear.packed
    if linear.out_features % (2 * PANEL):
        raise ValueError(f"{linear.out_features} output columns are not two halves of whole panels of {PANEL}")
    weight_bytes = library.coldplate_weight_bytes(_address(linear)) // 2
    scale_bytes = library.coldplate_scale_bytes(_address(linear)) // 2
    halves = []
    for half in (0, 1):
        part = PackedStruct.from_buffer_copy(whole)
        part.n = whole.n // 2
        part.weight = whole.weight + half * weight_bytes
        part.scales = whole.scales + half * scale_bytes if whole.scales else None
        part.bias = whole.bias + half * part.n * 4 if whole.bias else None
        halves.append(part)
    return halves[0], halves[1]
