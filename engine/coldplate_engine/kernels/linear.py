"""Linear layers of the CPU on the kernels. Activations are float32 inside; the result has the input's dtype."""

import ctypes

import torch
from torch import Tensor

from coldplate_engine.kernels.library import PackedStruct
from coldplate_engine.kernels.torch_linear import torch_linear
from coldplate_engine.models.layers import Linear, MakeLinear
from coldplate_engine.weights.quantized import Int4Weight, Weight

FLOAT32, BFLOAT16, FLOAT16, INT4, INT8, INT8_PER_TOKEN = range(6)
_FLOAT_KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
_BLOCK = 32  # columns the kernels sum as integers: a group of scales must be a whole number of them
_LINE = 64
_HALF_MIN, _HALF_MAX = 2.0**-15, 65000.0  # float16 rounds to 2**-11 from its least normal number on; here still 2**-10


class KernelLinear:
    """A weight packed for the kernels. ``packed`` is the C structure, valid as long as this object lives."""

    def __init__(self, library: ctypes.CDLL, weight: Weight, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.packed = PackedStruct(n=self.out_features, k=self.in_features)
        self._address = ctypes.addressof(self.packed)
        self._linear, self._rows = library.coldplate_linear, library.coldplate_weight_rows
        if isinstance(weight, Tensor):
            self.packed.kind, self.packed.group = _FLOAT_KINDS[weight.dtype], self.in_features
        elif isinstance(weight, Int4Weight):
            self.packed.kind, self.packed.group = INT4, weight.group_size
            self.packed.wide_scales = not _fit_half(weight.scales, weight.scales * weight.zeros)
        else:
            self.packed.kind, self.packed.group = INT8_PER_TOKEN if weight.activations else INT8, weight.group_size
            self.packed.wide_scales = not _fit_half(weight.scales)
        self._weight = _aligned(library.coldplate_weight_bytes(self._address))
        self._scales = _aligned(library.coldplate_scale_bytes(self._address))
        self._bias = None if bias is None else bias.float().contiguous()
        self.packed.weight = self._weight.data_ptr()
        self.packed.scales = self._scales.data_ptr()
        self.packed.bias = None if self._bias is None else self._bias.data_ptr()
        self.weight_bytes = sum(part.nbytes for part in (self._weight, self._scales, self._bias) if part is not None)
        self._pack(library, weight)

    def __call__(self, x: Tensor) -> Tensor:
        """``x [..., in]`` of any float dtype."""
        values = x.float().contiguous()
        y = torch.empty(*x.shape[:-1], self.out_features)
        rows = y.numel() // self.out_features
        if x.shape[-1] != self.in_features:
            raise ValueError(f"a linear of {self.in_features} input features got {x.shape[-1]}")
        if rows:
            self._linear(self._address, values.data_ptr(), rows, y.data_ptr())
        return y.to(x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """float32 ``[*ids.shape, in]``: rows of the weight, as an embedding. Ids must be in range."""
        ids = ids.long().contiguous()
        out = torch.empty(*ids.shape, self.in_features)
        self._rows(self._address, ids.data_ptr(), ids.numel(), out.data_ptr())
        return out

    def _pack(self, library: ctypes.CDLL, weight: Weight) -> None:
        to, scales = self.packed.weight, self.packed.scales
        if isinstance(weight, Tensor):
            source = weight.contiguous()
            library.coldplate_pack_float(self._address, source.data_ptr(), to)
        elif isinstance(weight, Int4Weight):
            parts = weight.packed.contiguous(), weight.scales.float().contiguous(), weight.zeros.float().contiguous()
            library.coldplate_pack_int4(self._address, *(part.data_ptr() for part in parts), to, scales)
        else:
            values, plain = weight.values.contiguous(), weight.scales.float().contiguous()
            library.coldplate_pack_int8(self._address, values.data_ptr(), plain.data_ptr(), to, scales)


def linear_maker(library: ctypes.CDLL | None) -> MakeLinear:
    """What makes the fastest linear this machine has for a weight; None: of torch alone."""

    def make(weight: Weight, bias: Tensor | None) -> Linear:
        if library is None or not _has_kernel(weight):
            return torch_linear(weight, bias)
        return KernelLinear(library, weight, bias)

    return make


def _has_kernel(weight: Weight) -> bool:
    if isinstance(weight, Tensor):
        return weight.dtype in _FLOAT_KINDS
    columns, group = weight.shape[1], weight.group_size
    if isinstance(weight, Int4Weight):
        return group % _BLOCK == 0
    return group == columns or group % _BLOCK == 0


def _fit_half(*scales: Tensor) -> bool:
    """Whether float16 keeps all scales to about one part in a thousand."""
    for values in scales:
        magnitudes = values.abs()
        least = magnitudes.where(magnitudes > 0, 1.0).min()
        if not (least >= _HALF_MIN and magnitudes.max() <= _HALF_MAX):
            return False
    return True


def _aligned(size: int) -> Tensor:
    """uint8 ``[size]`` at the start of a cache line."""
    memory = torch.empty(size + _LINE, dtype=torch.uint8)
    skip = -memory.data_ptr() % _LINE
    return memory[skip : skip + size]
