"""Linear layers of torch's own operators: where the kernels are not there or have none for a weight."""

import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor

from coldplate_engine.models.layers import Linear
from coldplate_engine.weights.quantized import Int4Weight, Int8Weight, Weight, take_rows

_INT4_GROUPS = (32, 64, 128, 256)
_INT4_ROWS = 16  # torch's int4 kernel takes whole tiles of output features
_TILE_BYTES = 1 << 20


def torch_linear(weight: Weight, bias: Tensor | None) -> Linear:
    """The best of torch for this weight."""
    if isinstance(weight, Tensor):
        try:
            return FloatLinear(OneDnnLinear(weight, bias), weight.dtype)
        except (RuntimeError, AttributeError):  # no kernel for this dtype, or a torch built without oneDNN
            return FloatLinear(PlainLinear(weight, bias), weight.dtype)
    if isinstance(weight, Int4Weight):
        if weight.group_size in _INT4_GROUPS and weight.shape[0] % _INT4_ROWS == 0:
            return Int4Linear(weight, bias)
        return TiledLinear(weight, bias)
    if weight.group_size != weight.shape[1]:
        return TiledLinear(weight, bias)
    return W8A8Linear(weight, bias) if weight.activations else Int8Linear(weight, bias)


class PlainLinear:
    """The weight as it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.weight_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class OneDnnLinear:
    """The weight in oneDNN's own blocked layout: packed once, so that no call reorders it.

    Raises RuntimeError where oneDNN has no kernel for the weight's dtype on this processor.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")  # type: ignore[no-any-return]


class FloatLinear:
    """``inner`` computes in the weight's dtype; input and output have the caller's."""

    def __init__(self, inner: Linear, dtype: torch.dtype) -> None:
        self.inner, self.dtype, self.weight_bytes = inner, dtype, inner.weight_bytes

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner(x.to(self.dtype)).to(x.dtype)


class Int4Linear:
    """torch's int4 kernel: ``(q - 8) * scale + zero``."""

    def __init__(self, weight: Int4Weight, bias: Tensor | None) -> None:
        q = torch.stack((weight.packed & 15, weight.packed >> 4), dim=2).view(weight.shape).int()
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
        zeros = (8.0 - weight.zeros) * weight.scales
        self.scales_and_zeros = torch.stack((weight.scales, zeros), dim=2).transpose(0, 1).contiguous()  # [g, out, 2]
        self.group_size, self.bias = weight.group_size, None if bias is None else bias.float()
        self.weight_bytes = self.packed.nbytes + self.scales_and_zeros.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        flat = x.float().reshape(-1, x.shape[-1])
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(flat, self.packed, self.group_size, self.scales_and_zeros)
        return _finished(y, self.bias, x)


class Int8Linear:
    """torch's int8 kernel, one scale to an output feature."""

    def __init__(self, weight: Int8Weight, bias: Tensor | None) -> None:
        self.values, self.scales = weight.values, weight.scales[:, 0].float().contiguous()
        self.bias = None if bias is None else bias.float()
        self.weight_bytes = self.values.nbytes + self.scales.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        flat = x.float().reshape(-1, x.shape[-1])
        return _finished(torch.ops.aten._weight_int8pack_mm(flat, self.values, self.scales), self.bias, x)


class W8A8Linear:
    """Activations on an int8 scale per token, then an integer product."""

    def __init__(self, weight: Int8Weight, bias: Tensor | None) -> None:
        self.values, self.scales = weight.values.t(), weight.scales[:, 0].float().contiguous()
        self.bias = None if bias is None else bias.float()
        self.weight_bytes = self.values.nbytes + self.scales.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        flat = x.float().reshape(-1, x.shape[-1])
        scale = flat.abs().amax(dim=1, keepdim=True) / 127
        # A row that is not finite has such a scale, which makes its whole output so.
        q = (flat / scale.where(scale > 0, 1.0)).nan_to_num(0.0, 0.0, 0.0).round().clamp(-127, 127).to(torch.int8)
        return _finished(torch._int_mm(q, self.values).float() * scale * self.scales, self.bias, x)


class TiledLinear:
    """Any quantised weight: widened a few rows at a time, so that it is never whole in float32."""

    def __init__(self, weight: Int4Weight | Int8Weight, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, None if bias is None else bias.float()
        parts = (
            (weight.packed, weight.scales, weight.zeros)
            if isinstance(weight, Int4Weight)
            else (weight.values, weight.scales)
        )
        self.weight_bytes = sum(part.nbytes for part in parts) + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        flat = x.float().reshape(-1, x.shape[-1])
        rows, columns = self.weight.shape
        step = max(1, _TILE_BYTES // (4 * columns))
        tiles = [F.linear(flat, self._widened(start, min(rows, start + step))) for start in range(0, rows, step)]
        return _finished(torch.cat(tiles, dim=1), self.bias, x)

    def _widened(self, start: int, stop: int) -> Tensor:
        part = take_rows(self.weight, torch.arange(start, stop))
        return part if isinstance(part, Tensor) else part.dequantized()


def _finished(y: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    if bias is not None:
        y = y + bias
    return y.view(*x.shape[:-1], y.shape[-1]).to(x.dtype)
