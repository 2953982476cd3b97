"""What the server reads of a model directory: never the weights."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_TOKEN_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class ModelFilesError(Exception):
    """A model directory that cannot be served: one line naming the file and the reason."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The text side of a model directory in the Hugging Face layout."""

    tokenizer_json: str
    vocabulary_size: int
    end_of_text_ids: frozenset[int]
    max_context_tokens: int
    architecture: str
    chat_template: str | None
    chat_template_file: Path
    token_variables: dict[str, str]
    revision: str

    @classmethod
    def read(cls, model_dir: Path) -> "ModelFiles":
        """Raises ModelFilesError."""
        if not model_dir.is_dir():
            raise ModelFilesError(f"{model_dir}: {'not a directory' if model_dir.exists() else 'no such directory'}")
        config_file = model_dir / "config.json"
        config = _object(config_file)
        # Multimodal models keep the language model's numbers one level down.
        text_config = config | config["text_config"] if isinstance(config.get("text_config"), dict) else config
        generation = _object(model_dir / "generation_config.json", required=False)
        tokenizer_config = _object(model_dir / "tokenizer_config.json", required=False)
        tokenizer_json = _text(model_dir / "tokenizer.json")
        template, template_file = _chat_template(model_dir, tokenizer_config)
        context = next((text_config[key] for key in _CONTEXT_KEYS if _is_count(text_config.get(key))), None)
        if context is None:
            raise ModelFilesError(
                f"{config_file}: no context length: expected max_position_embeddings, n_positions or n_ctx"
            )
        if not _is_count(text_config.get("vocab_size")):
            raise ModelFilesError(f"{config_file}: vocab_size is {text_config.get('vocab_size')!r}, expected a count")
        digest = hashlib.sha256()
        for part in (
            tokenizer_json,
            template or "",
            json.dumps([config, generation, tokenizer_config], sort_keys=True),
        ):
            digest.update(len(part).to_bytes(8, "little") + part.encode(errors="surrogatepass"))
        return cls(
            tokenizer_json=tokenizer_json,
            vocabulary_size=text_config["vocab_size"],
            end_of_text_ids=_ids(text_config.get("eos_token_id"), config_file)
            | _ids(generation.get("eos_token_id"), model_dir / "generation_config.json"),
            max_context_tokens=context,
            architecture=_architecture(config),
            chat_template=template,
            chat_template_file=template_file,
            token_variables=_token_variables(tokenizer_config),
            revision=digest.hexdigest()[:16],
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelFilesError(f"{path}: missing; expected a model folder in the Hugging Face layout") from None
    except OSError as error:
        raise ModelFilesError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ModelFilesError(f"{path}: not UTF-8 text (byte {error.start})") from error


def _object(path: Path, *, required: bool = True) -> dict[str, Any]:
    if not required and not path.exists():
        return {}
    try:
        value = json.loads(_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ModelFilesError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFilesError(f"{path}: expected a JSON object")
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _ids(value: object, path: Path) -> frozenset[int]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) and item >= 0 for item in values):
        raise ModelFilesError(f"{path}: eos_token_id is {value!r}, expected a token id or a list of them")
    return frozenset(values)


def _architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    return str(config.get("model_type", "unknown"))


def _chat_template(model_dir: Path, tokenizer_config: dict[str, Any]) -> tuple[str | None, Path]:
    """The template and the file it is from: chat_template.jinja, chat_template.json, then tokenizer_config.json."""
    plain, wrapped = model_dir / "chat_template.jinja", model_dir / "chat_template.json"
    if plain.exists():
        return _text(plain), plain
    path = wrapped if wrapped.exists() else model_dir / "tokenizer_config.json"
    value = (_object(wrapped) if wrapped.exists() else tokenizer_config).get("chat_template")
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise ModelFilesError(f"{path}: chat_template is neither text nor a list of named templates")
    return value or None, path


def _token_variables(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """``bos_token`` and the like, for templates; each is text or an object with ``content``."""
    variables = {}
    for name in _TOKEN_VARIABLES:
        value = tokenizer_config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            variables[name] = value
    return variables
