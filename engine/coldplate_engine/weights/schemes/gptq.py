"""GPTQ in 4 bits without activation ordering."""

import torch

from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.packing import pack_nibbles, unpack_first, unpack_last
from coldplate_engine.weights.quantized import Int4Weight
from coldplate_engine.weights.schemes.base import FLOAT_SCALES, PlainEmbedding, SchemeSettings, group_of
from coldplate_engine.weights.stored import CheckedTensors

_WORD = 8


class Gptq(PlainEmbedding):
    """``qweight`` int32 ``[in / 8, out]``, ``qzeros`` ``[in / g, out / 8]``, ``scales`` ``[in / g, out]``.

    The first checkpoint format stores each zero point less one; ``gptq_v2`` stores it as it is.
    """

    name = "gptq"

    def __init__(self, config: ModelConfig, settings: SchemeSettings) -> None:
        settings.only("bits", (4,))
        settings.only("desc_act", (False, None))
        settings.only("checkpoint_format", ("gptq", "gptq_v2", None))
        if settings.get("dynamic"):
            raise settings.error("dynamic", "must be absent: settings of single layers are not supported")
        self._zero_offset = 0 if settings.get("checkpoint_format") == "gptq_v2" else 1
        self._group_size = settings.group_size("group_size")

    def linear(self, tensors: CheckedTensors, prefix: str, shape: tuple[int, int]) -> Int4Weight | None:
        name, order = f"{prefix}.qweight", f"{prefix}.g_idx"
        if name not in tensors and f"{prefix}.weight" in tensors:
            return None
        out, width = shape
        tensors.stored(name)
        group = group_of(tensors, name, width, self._group_size)
        if out % _WORD or width % _WORD:
            raise tensors.error(name, f"is of {out} outputs and {width} inputs: both must be multiples of {_WORD}")
        if order in tensors and not torch.equal(
            tensors.read(order, (width,), ("I32",)), torch.arange(width, dtype=torch.int32) // group
        ):
            raise tensors.error(order, "orders inputs by activation (desc_act), which is not supported")
        words = tensors.read(name, (width // _WORD, out), ("I32",))
        zeros = tensors.read(f"{prefix}.qzeros", (width // group, out // _WORD), ("I32",))
        scales = tensors.read(f"{prefix}.scales", (width // group, out), FLOAT_SCALES)
        return Int4Weight(
            pack_nibbles(unpack_first(words, 4).t()),
            scales.float().t().contiguous(),
            unpack_last(zeros, 4).float().t().contiguous().add_(self._zero_offset),
            group,
        )
