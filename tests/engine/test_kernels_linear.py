"""Linear layers on the kernels and on torch alone, against the dequantised weight in float64."""

import ctypes
import functools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coldplate_engine.kernels.build import build
from coldplate_engine.kernels.library import load_library, open_library
from coldplate_engine.kernels.linear import KernelLinear, linear_maker
from coldplate_engine.weights.quantized import Int4Weight, Int8Weight, Weight

pytestmark = pytest.mark.timeout(600)  # the first to need them compiles the kernels

# Of the sum of magnitudes behind an output: rounding of float32, and of bfloat16 where torch computes in it.
FLOAT_BOUND, BFLOAT16_BOUND = 3e-6, 6e-3


@functools.cache
def native() -> ctypes.CDLL:
    library = load_library("on")
    assert library is not None
    return library


@functools.cache
def generic() -> ctypes.CDLL:
    """The same sources without anything made for one kind of processor."""
    return open_library(build(extra_flags=("-DCOLDPLATE_GENERIC",)))


def weight_of(kind: str, n: int, k: int, group: int, seed: int) -> Weight:
    draw = torch.Generator().manual_seed(seed)
    if kind in ("float32", "bfloat16", "float16"):
        return torch.randn(n, k, generator=draw).to(getattr(torch, kind))
    scales = torch.rand(n, -(-k // group), generator=draw) * 0.01 + 0.001
    if kind == "int4":
        packed = torch.randint(0, 256, (n, k // 2), generator=draw).to(torch.uint8)
        return Int4Weight(packed, scales, torch.rand(scales.shape, generator=draw) * 15, group)
    values = torch.randint(-128, 128, (n, k), generator=draw).to(torch.int8)
    return Int8Weight(values, scales, group, activations=kind == "w8a8")


def exact(weight: Weight, x: Tensor, bias: Tensor | None) -> Tensor:
    dense = weight if isinstance(weight, Tensor) else weight.dequantized()
    y = x.double() @ dense.double().t()
    return y if bias is None else y + bias.double()


def worst(weight: Weight, x: Tensor) -> Tensor:
    """How far quantised activations and float16 scales may take an output, float64 ``[rows, out]``.

    An activation is off by at most half a step of 1/127 of the largest beside it, a scale by one part in 2**10.
    """
    if isinstance(weight, Tensor):
        return FLOAT_BOUND * (x.double().abs() @ weight.double().abs().t())
    dense = weight.dequantized().double().abs()
    steps = torch.full_like(dense, 15) if isinstance(weight, Int4Weight) else weight.values.double().abs()
    sizes = steps * weight.scales.double().abs().repeat_interleave(weight.group_size, 1)
    x = x.double().abs()
    columns = weight.group_size if isinstance(weight, Int8Weight) and weight.activations else 32
    largest = torch.stack([block.amax(1) for block in torch.split(x, columns, 1)], 1).repeat_interleave(columns, 1)
    return (largest[:, : x.shape[1]] / 253) @ dense.t() + (x @ sizes.t()) / 2**10


def close(y: Tensor, weight: Weight, x: Tensor, bias: Tensor | None) -> bool:
    right = exact(weight, x, bias)
    return bool(((y.double() - right).abs() <= worst(weight, x) + 1e-6 * right.abs() + 1e-6).all())


def error(y: Tensor, right: Tensor) -> float:
    """Relative, of the whole result."""
    return float((y.double() - right).norm() / right.norm())


@st.composite
def linears(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """Kind, out, in, group."""
    kind = draw(st.sampled_from(["float32", "bfloat16", "float16", "int4", "int8", "w8a8"]))
    n = draw(st.integers(1, 150))
    if kind in ("float32", "bfloat16", "float16"):
        return kind, n, draw(st.integers(1, 1100)), 0
    if kind == "w8a8":
        k = draw(st.integers(1, 700))
        return kind, n, k, k
    group = draw(st.sampled_from([32, 64, 128]))
    return kind, n, group * draw(st.integers(1, 6)), group


@settings(max_examples=60, deadline=None)
@given(linears(), st.integers(1, 40), st.booleans(), st.integers(1, 3), st.integers(0, 2**31))
def test_kernels_compute_the_linear(
    shape: tuple[str, int, int, int], rows: int, biased: bool, threads: int, seed: int
) -> None:
    kind, n, k, group = shape
    weight = weight_of(kind, n, k, group, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    x, bias = torch.randn(rows, k, generator=draw), torch.randn(n, generator=draw) if biased else None
    native().coldplate_set_threads(threads)
    on_native = KernelLinear(native(), weight, bias)(x)
    assert close(on_native, weight, x, bias)
    native().coldplate_set_threads(1)
    assert torch.equal(KernelLinear(native(), weight, bias)(x), on_native)


@pytest.mark.slow  # compiles
@settings(max_examples=60, deadline=None)
@given(linears(), st.integers(1, 40), st.integers(0, 2**31))
def test_the_generic_build_computes_the_same(shape: tuple[str, int, int, int], rows: int, seed: int) -> None:
    weight = weight_of(*shape, seed)
    x, bias = torch.randn(rows, shape[2], generator=torch.Generator().manual_seed(seed)), torch.ones(shape[1])
    assert close(KernelLinear(generic(), weight, bias)(x), weight, x, bias)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int4", "int8", "w8a8"])
@pytest.mark.parametrize("library", [native, pytest.param(generic, marks=pytest.mark.slow)], ids=["native", "generic"])
def test_a_row_does_not_depend_on_the_rows_beside_it(kind: str, library: object) -> None:
    assert callable(library)
    linear = KernelLinear(library(), weight_of(kind, 83, 576, 576 if kind == "w8a8" else 64, 3), torch.randn(83))
    x = torch.randn(101, 576)
    together = linear(x)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 40, 49, 100):
        assert torch.equal(linear(x[:rows]), together[:rows]), rows
        assert torch.equal(linear(x[101 - rows :]), together[101 - rows :]), rows


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int4", "int8", "w8a8"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_in_its_row(kind: str, poison: float) -> None:
    linear = KernelLinear(native(), weight_of(kind, 40, 96, 96 if kind == "w8a8" else 32, 4), None)
    x = torch.randn(9, 96)
    clean = linear(x)
    x[4, 17] = poison
    y = linear(x)
    assert not y[4].isfinite().any()
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(y[others], clean[others])


@pytest.mark.parametrize("kind", ["int4", "int8", "w8a8"])
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-20, 1e20])
def test_quantised_activations_of_any_size(kind: str, size: float) -> None:
    weight = weight_of(kind, 20, 64, 64 if kind == "w8a8" else 32, 5)
    x = torch.randn(3, 64) * size
    y = KernelLinear(native(), weight, None)(x)
    right = exact(weight, x, None)
    assert y.abs().max() < 1e-28 if size < 1e-30 else ((y.double() - right).abs() <= worst(weight, x)).all()


@pytest.mark.parametrize("scale", [1e-7, 1e6])
@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_scales_beyond_float16(kind: str, scale: float) -> None:
    weight = weight_of(kind, 24, 64, 32, 6)
    assert not isinstance(weight, Tensor)
    weight.scales.mul_(scale)
    x = torch.randn(5, 64)
    right = exact(weight, x, None)
    assert ((KernelLinear(native(), weight, None)(x).double() - right).abs() <= worst(weight, x)).all()


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int4", "int8", "w8a8"])
@pytest.mark.parametrize("library", [native, pytest.param(generic, marks=pytest.mark.slow)], ids=["native", "generic"])
def test_rows_of_the_weight(kind: str, library: object) -> None:
    assert callable(library)
    weight = weight_of(kind, 37, 70 if kind == "w8a8" else 96, 70 if kind == "w8a8" else 32, 7)
    dense = weight.float() if isinstance(weight, Tensor) else weight.dequantized()
    ids = torch.tensor([[36, 0], [5, 36]])
    got = KernelLinear(library(), weight, None).rows(ids)
    assert torch.allclose(got, dense[ids], rtol=2e-3 if kind in ("int4", "int8", "w8a8") else 0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_result_has_the_inputs_shape_and_dtype(dtype: torch.dtype) -> None:
    for make in (linear_maker(native()), linear_maker(None)):
        for kind in ("float32", "bfloat16", "int4", "int8", "w8a8"):
            weight = weight_of(kind, 48, 64, 64, 8)
            y = make(weight, None)(torch.randn(2, 3, 64).to(dtype))
            assert y.shape == (2, 3, 48)
            assert y.dtype == dtype
            assert make(weight, None)(torch.empty(0, 64).to(dtype)).shape == (0, 48)


def test_too_many_features_are_refused() -> None:
    with pytest.raises(ValueError, match="a linear of 64 input features got 65"):
        KernelLinear(native(), torch.randn(16, 64), None)(torch.randn(2, 65))


@pytest.mark.parametrize(
    ("kind", "n", "k", "group"),
    [
        ("float32", 33, 70, 0),
        ("bfloat16", 33, 70, 0),
        ("int4", 32, 128, 64),
        ("int4", 33, 128, 64),
        ("int4", 32, 48, 16),
        ("int8", 33, 70, 70),
        ("int8", 33, 70, 10),
        ("w8a8", 33, 72, 72),
    ],
)
def test_torch_alone_computes_the_same(kind: str, n: int, k: int, group: int) -> None:
    weight, x, bias = weight_of(kind, n, k, group, 9), torch.randn(7, k), torch.randn(n)
    linear = linear_maker(None)(weight, bias.to(weight.dtype) if isinstance(weight, Tensor) else bias)
    if kind == "w8a8":
        assert close(linear(x), weight, x, bias)
    else:
        assert error(linear(x), exact(weight, x, bias)) < (BFLOAT16_BOUND if kind == "bfloat16" else FLOAT_BOUND)
    assert linear.weight_bytes > 0
    x[3, 5] = float("nan")
    assert not linear(x)[3].isfinite().any()


def test_a_group_the_kernels_have_no_code_for_still_computes() -> None:
    weight, x = weight_of("int4", 32, 48, 16, 10), torch.randn(2, 48)
    linear = linear_maker(native())(weight, None)
    assert not isinstance(linear, KernelLinear)
    assert error(linear(x), exact(weight, x, None)) < FLOAT_BOUND


def test_weight_bytes_are_those_of_the_packed_weight(tmp_path: Path) -> None:
    int4 = KernelLinear(native(), weight_of("int4", 64, 128, 32, 11), None)
    assert int4.weight_bytes == 64 * 128 // 2 + 64 * 4 * 2 * 2
    assert KernelLinear(native(), torch.randn(64, 128).bfloat16(), torch.randn(64)).weight_bytes == 64 * 128 * 2 + 256
