"""``config.json`` and ``generation_config.json`` of a model directory, read with errors that name file and key."""

import json
from pathlib import Path
from typing import Any

from coldplate_engine.runner import ModelError
from coldplate_engine.weights.gguf import GgufModel, find_gguf


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ``ModelError`` where it is absent, unreadable or no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: must hold a JSON object, not {type(value).__name__}")
    return value


class ModelConfig:
    """The keys of ``config.json``, typed. Every getter raises ``ModelError`` naming the file, the key and the value."""

    def __init__(self, directory: Path) -> None:
        """``directory`` may also be a GGUF file, or hold one and no safetensors: ``gguf`` is what it holds."""
        self.gguf: GgufModel | None = None
        self.generation_fields: dict[str, Any] = {}
        gguf = find_gguf(directory)
        if gguf is not None:
            self.gguf = GgufModel(gguf)
            self.path = self.generation_path = gguf
            self.fields = self.gguf.fields
            return
        if not directory.is_dir():
            raise ModelError(f"{directory}: no such model directory")
        self.path = directory / "config.json"
        self.fields = read_json(self.path)
        generation = directory / "generation_config.json"
        self.generation_path = generation
        if generation.exists():
            self.generation_fields = read_json(generation)

    @property
    def architecture(self) -> str:
        names = self.fields.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
            raise self.error("architectures", "must name one architecture", names)
        return names[0]

    @property
    def end_of_text_ids(self) -> frozenset[int]:
        """``eos_token_id`` of both files together: a number, a list or nothing in each."""
        ids: set[int] = set()
        for path, fields in ((self.path, self.fields), (self.generation_path, self.generation_fields)):
            value = fields.get("eos_token_id")
            listed = value if isinstance(value, list) else [] if value is None else [value]
            for item in listed:
                if isinstance(item, bool) or not isinstance(item, int):
                    raise ModelError(f"{path}: eos_token_id must be a token id or a list of them, got {value!r}")
                ids.add(item)
        return frozenset(ids)

    def error(self, key: str, must: str, value: object) -> ModelError:
        return ModelError(f"{self.path}: {key} {must}, got {value!r}")

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1. ``default`` serves a key that is absent or null."""
        value = self.fields.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(key, "must be a whole number of at least 1", value)
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        return self.positive_in(self.fields, key, default)

    def positive_in(self, table: dict[str, Any], key: str, default: float | None = None) -> float:
        """A finite number above 0 from an inner table of the file."""
        value = table.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.error(key, "must be a number above 0", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.fields.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false", value)
        return value

    def choice(self, key: str, default: str, choices: tuple[str, ...]) -> str:
        value = self.fields.get(key, default)
        if value not in choices:
            raise self.error(key, f"must be one of {', '.join(choices)}", value)
        return str(value)
