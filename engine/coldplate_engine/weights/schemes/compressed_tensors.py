"""compressed-tensors: W4A16 and W8A16 packed into words, and int8 with or without 8-bit activations.

Layout: https://github.com/vllm-project/compressed-tensors, ``compressors/pack_quantized`` and ``naive_quantized``.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.packing import pack_nibbles, unpack_first, unpack_last
from coldplate_engine.weights.quantized import Int4Weight, Int8Weight
from coldplate_engine.weights.schemes.base import FLOAT_SCALES, WHOLE_ROW, PlainEmbedding, SchemeSettings, group_of
from coldplate_engine.weights.stored import CheckedTensors

_PACKED = "pack-quantized"
_FORMATS = (_PACKED, "int-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True)
class _Group:
    """How the layers that ``targets`` name are stored. ``per_tensor``: one scale for the whole matrix."""

    targets: tuple[str, ...]
    packed: bool
    bits: int
    symmetric: bool
    group_size: int
    per_tensor: bool
    activations: bool


class CompressedTensors(PlainEmbedding):
    """The layers named by a config group's targets and not ignored are quantised its way."""

    name = "compressed-tensors"

    def __init__(self, config: ModelConfig, settings: SchemeSettings) -> None:
        for key in ("sparsity_config", "transform_config"):
            if settings.get(key):
                raise settings.error(key, "must be absent: such weights are not supported")
        self._ignore = settings.names("ignore")
        groups = settings.table("config_groups")
        self._groups = [_read_group(groups.table(key), settings) for key in groups.keys()]  # noqa: SIM118 - no mapping

    def linear(self, tensors: CheckedTensors, prefix: str, shape: tuple[int, int]) -> Int4Weight | Int8Weight | None:
        if any(_matches(prefix, name) for name in self._ignore):
            return None
        group = next((one for one in self._groups if any(_matches(prefix, t) for t in one.targets)), None)
        if group is None:
            return None
        return _packed(tensors, prefix, shape, group) if group.packed else _int8(tensors, prefix, shape, group)


def _matches(prefix: str, name: str) -> bool:
    if name.startswith("re:"):
        return re.match(name[3:], prefix) is not None
    return name in ("Linear", prefix)


def _read_group(group: SchemeSettings, top: SchemeSettings) -> _Group:
    kind = group.get("format") or top.get("format")
    if kind not in _FORMATS:
        raise (group if group.get("format") else top).error("format", f"must be one of {', '.join(_FORMATS)}")
    packed = kind == _PACKED
    for target in group.names("targets"):
        if target.startswith("re:"):
            try:
                re.compile(target[3:])
            except re.error as error:
                raise group.error("targets", f"holds an unusable expression ({error})") from None
    weights = group.table("weights")
    weights.only("type", ("int",))
    bits = int(weights.only("num_bits", (4, 8) if packed else (8,)))
    weights.only("actorder", (None, "static", "weight"))
    strategy = weights.only("strategy", ("group", "channel") if packed else ("channel", "tensor", "group"))
    weights.only("dynamic", (False, None))
    symmetric = bool(weights.only("symmetric", (True, False) if bits == 4 else (True,)))
    activations = group.get("input_activations") is not None
    if activations:
        inputs = group.table("input_activations")
        if packed or strategy == "group":
            raise group.error("input_activations", f"must be null with {kind} and strategy {strategy}")
        for key, allowed in (
            ("type", "int"), ("num_bits", 8), ("dynamic", True), ("strategy", "token"), ("symmetric", True)
        ):  # fmt: skip
            inputs.only(key, (allowed,))
    group.only("output_activations", (None,))
    size = weights.group_size("group_size") if strategy == "group" else WHOLE_ROW
    return _Group(tuple(group.names("targets")), packed, bits, symmetric, size, strategy == "tensor", activations)


def _packed(tensors: CheckedTensors, prefix: str, shape: tuple[int, int], group: _Group) -> Int4Weight | Int8Weight:
    name, order = f"{prefix}.weight_packed", f"{prefix}.weight_g_idx"
    tensors.stored(name)
    if order in tensors:
        raise tensors.error(order, "orders inputs by activation (actorder group), which is not supported")
    out, width = shape
    size = group_of(tensors, name, width, group.group_size)
    count = 32 // group.bits
    words = tensors.read(name, (out, -(-width // count)), ("I32",))
    stored_shape = tensors.read(f"{prefix}.weight_shape", (2,), ("I64", "I32"))
    if tuple(stored_shape.tolist()) != shape:
        raise tensors.error(f"{prefix}.weight_shape", f"must be {list(shape)}, found {stored_shape.tolist()}")
    scales = tensors.read(f"{prefix}.weight_scale", (out, width // size), FLOAT_SCALES).float()
    codes = unpack_last(words, group.bits)[:, :width]  # stored with 2^(bits - 1) added
    if group.bits == 8:
        return Int8Weight((codes ^ 128).view(torch.int8).contiguous(), scales, size, activations=False)
    zeros = _zeros(tensors, prefix, tuple(scales.shape)) if not group.symmetric else torch.full_like(scales, 8.0)
    return Int4Weight(pack_nibbles(codes), scales, zeros, size)


def _zeros(tensors: CheckedTensors, prefix: str, shape: tuple[int, ...]) -> Tensor:
    """Zero points on the scale of the codes: packed along the outputs, or (by older writers) int8 less 8."""
    name = f"{prefix}.weight_zero_point"
    if tensors.stored(name).kind == "I8":
        return tensors.read(name, shape, ("I8",)).float() + 8
    words = tensors.read(name, (-(-shape[0] // 8), shape[1]), ("I32",))
    return unpack_first(words, 4)[: shape[0]].float().contiguous()


def _int8(tensors: CheckedTensors, prefix: str, shape: tuple[int, int], group: _Group) -> Int8Weight:
    name, scale = f"{prefix}.weight", f"{prefix}.weight_scale"
    values = tensors.read(name, shape, ("I8",))
    out, width = shape
    size = group_of(tensors, name, width, group.group_size)
    if group.per_tensor:
        stored = tensors.stored(scale).shape
        one = tensors.read(scale, stored if stored in ((), (1,), (1, 1)) else (1,), FLOAT_SCALES)
        scales = one.float().reshape(1, 1).expand(out, 1).contiguous()
    else:
        scales = tensors.read(scale, (out, width // size), FLOAT_SCALES).float()
    return Int8Weight(values, scales, size, group.activations)
