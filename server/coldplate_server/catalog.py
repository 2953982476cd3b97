"""The models served, by name, with their tokenizers."""

from collections.abc import Iterable
from pathlib import Path

from coldplate_server.errors import InvalidRequest, UnknownModel, Violation
from coldplate_server.settings import ServedModel
from coldplate_server.text.tokenizer import Tokenizer

_SHOWN_NAME = 60


class Catalog:
    """Name to tokenizer. Loading raises ``ModelFilesError`` naming the file."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self.models = list(models)
        self._tokenizers = {model.name: Tokenizer.load(Path(model.folder)) for model in self.models}

    @property
    def names(self) -> list[str]:
        return list(self._tokenizers)

    def resolve(self, name: str) -> str:
        """The name of the model meant; empty stands for the only one there is.

        Raises UnknownModel, or InvalidRequest when empty is not enough.
        """
        if name in self._tokenizers:
            return name
        if name:
            shown = name if len(name) <= _SHOWN_NAME else name[:_SHOWN_NAME] + "…"
            served = ", ".join(self._tokenizers)
            raise UnknownModel(f"model: no model is called {shown!r}; served: {served}", model=shown)
        if len(self._tokenizers) == 1:
            return next(iter(self._tokenizers))
        raise InvalidRequest([Violation("model", f"say which of {', '.join(self._tokenizers)}")])

    def tokenizer(self, name: str) -> Tokenizer:
        """Raises as ``resolve`` does."""
        return self._tokenizers[self.resolve(name)]
