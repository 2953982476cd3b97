"""A model folder without weights, for chips that are only modelled, and what such a chip says."""

import json
from pathlib import Path

from coldplate_engine.devices.script import Script, script_of
from support import tokenizers
from support.tokenizers import CHATML, TokenizerSpec

CONTEXT = 1024


def model_folder(folder: Path) -> Path:
    """Config and tokenizer of a tiny Llama."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": tokenizers.BYTES_VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "eos_token_id": tokenizers.END_OF_TEXT_ID,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tokenizers.save(TokenizerSpec(chat_template=CHATML), folder)
    return folder


def script(folder: Path) -> Script:
    """What every chip that is modelled from ``folder`` says."""
    return script_of(folder, tokenizers.BYTES_VOCABULARY, frozenset({tokenizers.END_OF_TEXT_ID}))
