"""The kernels' shared library, loaded."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import structlog

from coldplate_engine.kernels.build import BuildError, build

log = structlog.get_logger()

KernelMode = Literal["auto", "on", "off"]
_Pointer = ctypes.c_void_p
_int, _long = ctypes.c_int32, ctypes.c_int64


class PackedStruct(ctypes.Structure):
    """``PackedLinear`` of csrc/linear.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("n", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("wide_scales", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("weight", _Pointer),
        ("scales", _Pointer),
        ("bias", _Pointer),
    )


_PROTOTYPES: dict[str, tuple[object, list[object]]] = {
    "coldplate_lanes": (ctypes.c_int, []),
    "coldplate_set_threads": (None, [ctypes.c_int]),
    "coldplate_get_threads": (ctypes.c_int, []),
    "coldplate_weight_bytes": (ctypes.c_size_t, [_Pointer]),
    "coldplate_scale_bytes": (ctypes.c_size_t, [_Pointer]),
    "coldplate_pack_float": (None, [_Pointer] * 3),
    "coldplate_pack_int4": (None, [_Pointer] * 6),
    "coldplate_pack_int8": (None, [_Pointer] * 5),
    "coldplate_linear": (None, [_Pointer, _Pointer, ctypes.c_int, _Pointer]),
    "coldplate_weight_rows": (None, [_Pointer, _Pointer, ctypes.c_int, _Pointer]),
    "coldplate_step_new": (_Pointer, [_Pointer]),
    "coldplate_step_delete": (None, [_Pointer]),
    "coldplate_step_run": (None, [_Pointer, _Pointer, _int, _Pointer, _int, _Pointer, _Pointer, _int, _Pointer]),
    "coldplate_step_seconds": (None, [_Pointer, _Pointer]),
    "coldplate_attention_new": (_Pointer, [_Pointer, *[_int] * 6, ctypes.c_float]),
    "coldplate_attention_delete": (None, [_Pointer]),
    "coldplate_attention_plan": (None, [_Pointer, _Pointer, _int, _Pointer]),
    "coldplate_attention_run": (None, [_Pointer, _int, _int, *[_Pointer, _long] * 3]),
    "coldplate_argmax": (None, [_Pointer, _int, _long, _Pointer, _Pointer]),
}


def open_library(path: Path) -> ctypes.CDLL:
    """Load and declare. Raises OSError when it is not a library of these kernels."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise OSError(f"{path}: {error}") from None
        function.restype, function.argtypes = result, arguments
    return library


def load_library(
    mode: KernelMode = "auto", progress: Callable[[float], None] = lambda _share: None
) -> ctypes.CDLL | None:
    """The library, built first where that is needed; None with ``off`` or, after one warning, where it cannot be had.

    Raises BuildError with ``on`` instead.
    """
    if mode == "off":
        return None
    found = _load_once(progress)
    if isinstance(found, ctypes.CDLL):
        return found
    if mode == "on":
        raise BuildError(str(found))
    return None


def loaded_library() -> ctypes.CDLL | None:
    """The library, if this process has loaded it; nothing is built."""
    return _found[0] if _found and isinstance(_found[0], ctypes.CDLL) else None


_found: list[ctypes.CDLL | BuildError] = []


def _load_once(progress: Callable[[float], None]) -> ctypes.CDLL | BuildError:
    """One attempt in a process."""
    if not _found:
        try:
            _found.append(_build_and_open(progress))
        except BuildError as error:
            log.warning("no CPU kernels: computing with torch alone, slower", reason=str(error))
            _found.append(error)
    return _found[0]


def _build_and_open(progress: Callable[[float], None]) -> ctypes.CDLL:
    path = build(progress=progress)
    try:
        return open_library(path)
    except OSError:  # cut short by a full disk, say: build it anew
        path.unlink(missing_ok=True)
    path = build(progress=progress)
    try:
        return open_library(path)
    except OSError as error:
        raise BuildError(f"the library does not load: {error}") from None
