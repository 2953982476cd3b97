"""Quantised checkpoints, by the method their configuration names."""

from coldplate_engine.runner import ModelError
from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.schemes.awq import Awq
from coldplate_engine.weights.schemes.base import Scheme, SchemeSettings
from coldplate_engine.weights.schemes.compressed_tensors import CompressedTensors
from coldplate_engine.weights.schemes.gptq import Gptq

__all__ = ["Scheme", "scheme_of"]

_SCHEMES = {scheme.name: scheme for scheme in (Awq, CompressedTensors, Gptq)}
_KEYS = ("quantization_config", "compression_config")


def scheme_of(config: ModelConfig) -> Scheme | None:
    """The scheme of a quantised checkpoint, None for plain weights.

    Raises ``ModelError`` naming the method or the setting that is not supported.
    """
    for key in _KEYS:
        table = config.fields.get(key)
        if table is None:
            continue
        if not isinstance(table, dict):
            raise config.error(key, "must be an object", table)
        method = table.get("quant_method")
        scheme = _SCHEMES.get(method) if isinstance(method, str) else None
        if scheme is None:
            raise ModelError(
                f"{config.path}: quantization method {method!r} is not supported (supported: {', '.join(_SCHEMES)}); "
                "use plain weights, perhaps with --quantize"
            )
        return scheme(config, SchemeSettings(config, key, table))
    return None
