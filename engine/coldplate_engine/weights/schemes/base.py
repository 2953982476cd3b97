"""What a quantisation scheme of a checkpoint is to the reader, and its settings read with errors that name them."""

from typing import Any, Protocol

from coldplate_engine.runner import ModelError
from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.quantized import Weight
from coldplate_engine.weights.stored import CheckedTensors

FLOAT_SCALES = ("F32", "F16", "BF16")
WHOLE_ROW = -1  # a group size of -1: one group is the whole row


class Scheme(Protocol):
    """``name`` is the method's own, as ``quant_method`` spells it."""

    name: str
    out_in: bool  # weights are [out, in] even where the Hugging Face layout has them transposed

    def linear(self, tensors: CheckedTensors, prefix: str, shape: tuple[int, int]) -> Weight | None:
        """The weight of the linear ``prefix``, shape ``(out, in)``; None when the checkpoint keeps this one plain.

        Raises ``ModelError`` naming file, tensor and what does not fit.
        """
        ...

    def tied_head(self, tensors: CheckedTensors, shape: tuple[int, int]) -> Weight | None:
        """The head of a model that uses its embedding for it; None when the embedding is plain."""
        ...


class PlainEmbedding:
    """Schemes that quantise the layers of the Hugging Face layout and no embedding."""

    out_in = False

    def tied_head(self, tensors: CheckedTensors, shape: tuple[int, int]) -> None:
        return None


class SchemeSettings:
    """A table of the configuration. Every getter raises ``ModelError`` with file, key and value."""

    def __init__(self, config: ModelConfig, path: str, table: dict[str, Any]) -> None:
        self._config, self._path, self._table = config, path, table

    def error(self, key: str, must: str) -> ModelError:
        return self._config.error(f"{self._path}.{key}", must, self._table.get(key))

    def get(self, key: str) -> Any:
        return self._table.get(key)

    def only(self, key: str, allowed: tuple[Any, ...]) -> Any:
        """The value, which must be one of those (None stands for a key that is absent)."""
        value = self._table.get(key)
        if not any(value is one or (type(value) is type(one) and value == one) for one in allowed):
            names = [str(one).lower() if isinstance(one, bool) else str(one) for one in allowed if one is not None]
            raise self.error(key, f"must be {' or '.join(names) if names else 'absent'}")
        return value

    def group_size(self, key: str) -> int:
        """A whole number of at least 1, or ``WHOLE_ROW``."""
        value = self._table.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != WHOLE_ROW):
            raise self.error(key, "must be a whole number of at least 1, or -1 for a whole row")
        return value

    def names(self, key: str) -> list[str]:
        value = self._table.get(key)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.error(key, "must be a list of names")
        return value

    def table(self, key: str) -> "SchemeSettings":
        value = self._table.get(key)
        if not isinstance(value, dict):
            raise self.error(key, "must be an object")
        return SchemeSettings(self._config, f"{self._path}.{key}", value)

    def keys(self) -> list[str]:
        return list(self._table)


def group_of(tensors: CheckedTensors, name: str, width: int, group_size: int) -> int:
    """The group size for rows of ``width`` inputs. Raises ``ModelError`` where it does not divide them."""
    group = width if group_size == WHOLE_ROW else group_size
    if width % group:
        raise tensors.error(name, f"has {width} inputs, which its group size {group} does not divide")
    if group % 2:
        raise tensors.error(name, f"has the odd group size {group}, which is not supported")
    return group
