"""Tokenizers for the tests, written as Hugging Face files: whole bytes, and words with a space mark."""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
POISON = "<|poison|>"
END_B = "<|end_b|>"

# Ids of the BYTES tokenizer: byte b is token b, then the special tokens.
END_OF_TEXT_ID, IM_START_ID, IM_END_ID, POISON_ID, END_B_ID = range(256, 261)
BYTES_SPECIAL = (END_OF_TEXT, IM_START, IM_END, POISON, END_B)
BYTES_VOCABULARY = 256 + len(BYTES_SPECIAL)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Refuses two turns of one role in a row, as several published templates do.
ALTERNATING = (
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Thinking as Qwen3 has it: switched off, the turn opens with thinking that is over.
THINK, END_THINK = "<think>", "</think>"
THINK_ID, END_THINK_ID = BYTES_VOCABULARY, BYTES_VOCABULARY + 1  # as the extra tokens of a BYTES tokenizer
THINKING = (
    CHATML + "{% if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
# Begins with the start token that the tokenizer adds, too.
START_TOKEN_FIRST = "{{ bos_token }}" + CHATML


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """``kind`` is "bytes" or "meta". ``adds_start`` puts ``<|im_start|>`` before plain text; ``extra`` come last."""

    kind: str = "bytes"
    chat_template: str | None = None
    adds_start: bool = False
    extra: tuple[str, ...] = ()


META_WORDS = ("▁Dear", "▁Name", ",", "▁I", "▁hope", "▁hello", "▁")
META_VOCABULARY = ("<unk>", END_OF_TEXT, *META_WORDS, *(chr(c) for c in range(ord("a"), ord("z") + 1)))


def build(spec: TokenizerSpec) -> Tokenizer:
    """The tokenizer itself, for expected ids and counts."""
    tokenizer = _bytes_tokenizer() if spec.kind == "bytes" else _meta_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in spec.extra])
    if spec.adds_start:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{IM_START} $A", pair=None, special_tokens=[(IM_START, IM_START_ID)]
        )
    return tokenizer


def save(spec: TokenizerSpec, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and, if there is one, chat_template.jinja."""
    build(spec).save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
    }
    if spec.kind == "bytes":
        config["bos_token"] = IM_START
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    if spec.chat_template is not None:
        (folder / "chat_template.jinja").write_text(spec.chat_template)


def _byte_symbols() -> list[str]:
    """The printable sign byte-level BPE uses for each byte, in byte order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    shifted = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + shifted.index(b)) for b in range(256)]


def _bytes_tokenizer() -> Tokenizer:
    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in BYTES_SPECIAL])
    return tokenizer


def _meta_tokenizer() -> Tokenizer:
    scores = [(piece, 0.0 if len(piece) > 1 else -10.0) for piece in META_VOCABULARY]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return tokenizer
