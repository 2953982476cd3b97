"""Model directories without weights: all that the server's text layer reads."""

import json
from pathlib import Path

from tokenizers import Tokenizer as Backend

from coldplate_server.text.tokenizer import Tokenizer
from support import tokenizers


def save_config(folder: Path, *, vocab_size: int, context: int = 256, **config: object) -> None:
    """Write config.json with ``<|endoftext|>`` of the BYTES tokenizer as its end, unless ``config`` says otherwise."""
    values = {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": vocab_size,
        "n_positions": context,
        "eos_token_id": tokenizers.END_OF_TEXT_ID,
    }
    (folder / "config.json").write_text(json.dumps(values | config))


def load(folder: Path, spec: tokenizers.TokenizerSpec, *, context: int = 256) -> Tokenizer:
    """The server's tokenizer for ``spec``, by way of files in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizers.save(spec, folder)
    save_config(folder, vocab_size=tokenizers.build(spec).get_vocab_size(), context=context)
    return Tokenizer.load(folder)


def load_backend(folder: Path, backend: Backend, *, chat_template: str | None = None) -> Tokenizer:
    """The server's tokenizer for any tokenizer of the tokenizers library."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    save_config(folder, vocab_size=backend.get_vocab_size(), eos_token_id=None)
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    return Tokenizer.load(folder)
