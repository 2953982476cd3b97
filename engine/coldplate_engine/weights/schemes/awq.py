"""AWQ as AutoAWQ stores it for its ``gemm`` kernel: 4 bits, groups along the input, whole zero points."""

from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.packing import pack_nibbles, unpack_last
from coldplate_engine.weights.quantized import Int4Weight
from coldplate_engine.weights.schemes.base import FLOAT_SCALES, PlainEmbedding, SchemeSettings, group_of
from coldplate_engine.weights.stored import CheckedTensors

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # column of the code at bits 4 i of a word
_WORD = 8


class Awq(PlainEmbedding):
    """``qweight`` int32 ``[in, out / 8]``, ``qzeros`` int32 ``[in / g, out / 8]``, ``scales`` ``[in / g, out]``."""

    name = "awq"

    def __init__(self, config: ModelConfig, settings: SchemeSettings) -> None:
        bits, group = ("bits", "group_size") if settings.get("bits") is not None else ("w_bit", "q_group_size")
        settings.only(bits, (4,))
        settings.only("zero_point", (True,))
        settings.only("version", ("gemm", "GEMM", None))
        settings.names("modules_to_not_convert")
        self._group_size = settings.group_size(group)

    def linear(self, tensors: CheckedTensors, prefix: str, shape: tuple[int, int]) -> Int4Weight | None:
        name = f"{prefix}.qweight"
        if name not in tensors and f"{prefix}.weight" in tensors:
            return None
        out, width = shape
        tensors.stored(name)
        group = group_of(tensors, name, width, self._group_size)
        if out % _WORD:
            raise tensors.error(name, f"holds {out} outputs, which must be a multiple of {_WORD}")
        words = tensors.read(name, (width, out // _WORD), ("I32",))
        zeros = tensors.read(f"{prefix}.qzeros", (width // group, out // _WORD), ("I32",))
        scales = tensors.read(f"{prefix}.scales", (width // group, out), FLOAT_SCALES)
        return Int4Weight(
            pack_nibbles(unpack_last(words, 4, ORDER).t()),
            scales.float().t().contiguous(),
            unpack_last(zeros, 4, ORDER).float().t().contiguous(),
            group,
        )
