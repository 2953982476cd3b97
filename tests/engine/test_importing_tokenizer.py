"""Imported tokenizers split as the models' own do, and text survives the way to ids and back."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from coldplate_engine.importing.gguf_file import GgufFile
from coldplate_engine.importing.gguf_tokenizer import ImportedTokenizer, read_tokenizer
from support import gguf_files

NFC = ("qwen2", "deepseek-r1-qwen")
PRES = ("default", "gpt-2", "smollm", "starcoder", "llama-bpe", *NFC)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PIECES = {
    "▁": -1.0,
    "h": -20.0,
    "e": -21.0,
    "l": -22.0,
    "o": -23.0,
    "he": -5.0,
    "ll": -4.0,
    "hell": -3.0,
    "▁hello": -2.0,
}
PIECES |= {"hello": -2.5}
_made: dict[str, ImportedTokenizer] = {}


def imported(folder: Path, add: Any, architecture: str = "llama") -> ImportedTokenizer:
    writer = gguf.GGUFWriter(folder / "t.gguf", architecture)
    add(writer)
    gguf_files.finish(writer)
    return read_tokenizer(GgufFile(folder / "t.gguf"), context_length=128)


@pytest.fixture(scope="module", autouse=True)
def _tokenizers(tmp_path_factory: pytest.TempPathFactory) -> None:
    for pre in PRES:
        folder = tmp_path_factory.mktemp(pre)
        _made[pre] = imported(folder, lambda writer, pre=pre: gguf_files.add_byte_level_tokenizer(writer, pre))
    folder = tmp_path_factory.mktemp("spm")
    _made["spm"] = imported(folder, lambda writer: gguf_files.add_sentencepiece_tokenizer(writer, PIECES))


def split(tokenizer: Tokenizer, text: str) -> list[str]:
    """The pieces a text is cut into before merging, as text."""
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in pieces]


@pytest.mark.parametrize("pre", PRES)
@given(text=TEXTS)
def test_round_trip(pre: str, text: str) -> None:
    tokenizer = _made[pre].tokenizer
    expected = unicodedata.normalize("NFC", text) if pre in NFC else text
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == expected


@given(text=TEXTS.filter(lambda text: "▁" not in text))
def test_sentencepiece_round_trip(text: str) -> None:
    tokenizer = _made["spm"].tokenizer
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@given(text=TEXTS)
def test_smollm_and_gpt2_split_as_in_their_own_files(text: str) -> None:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    smollm = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    for pre, own in (("smollm", smollm), ("gpt-2", byte_level)):
        assert _made[pre].tokenizer.pre_tokenizer.pre_tokenize_str(text) == own.pre_tokenize_str(text)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["I", "'ll", " pay", " ", "1", "2", "3", "4", " now", "\n", "\n", "DON", "'", "T"]),
        ("gpt-2", ["I", "'ll", " pay", " 1234", " now", "\n", "\n", "DON", "'", "T"]),
        ("llama-bpe", ["I", "'ll", " pay", " ", "123", "4", " now", "\n\n", "DON", "'T"]),
        ("qwen2", ["I", "'ll", " pay", " ", "1", "2", "3", "4", " now", "\n\n", "DON", "'T"]),
        ("default", ["I", "'", "ll", " pay", " ", "123", "4", " now", "\n", "\n", "DON", "'", "T"]),
    ],
)
def test_split_of_a_sentence(pre: str, pieces: list[str]) -> None:
    assert split(_made[pre].tokenizer, "I'll pay 1234 now\n\nDON'T") == pieces


def test_special_and_user_tokens() -> None:
    tokenizer = _made["smollm"].tokenizer
    ids = tokenizer.encode("<|im_start|>hello<tool> w<|im_end|>").ids
    tokens = gguf_files.BYTE_LEVEL_TOKENS
    assert [tokens[i] for i in ids] == ["<|im_start|>", "hello", "<tool>", "Ġw", "<|im_end|>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello<tool> w"


def test_turn_ends_come_first_and_all_are_listed() -> None:
    assert _made["smollm"].end_ids == [2, 0]  # <|im_end|> as the file says, <|endoftext|> by its name
    assert _made["smollm"].config["chat_template"] == gguf_files.CHAT_TEMPLATE
    assert _made["smollm"].config["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize(("adds_bos", "first"), [(True, ["<|im_start|>", "hello"]), (False, ["hello"])])
def test_bos(tmp_path: Path, adds_bos: bool, first: list[str]) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        gguf_files.add_byte_level_tokenizer(writer)
        writer.kv_data[0].pop("tokenizer.ggml.add_bos_token")
        writer.add_add_bos_token(adds_bos)

    tokenizer = imported(tmp_path, add).tokenizer
    assert tokenizer.encode("hello").tokens == first
    assert tokenizer.encode("hello", add_special_tokens=False).tokens == ["hello"]


def test_sentencepiece_joins_by_score() -> None:
    tokenizer = _made["spm"].tokenizer
    assert tokenizer.encode("hello").tokens == ["<s>", "▁hello"]
    assert tokenizer.encode("hell lo").tokens == ["<s>", "▁", "hell", "▁", "l", "o"]
    assert tokenizer.encode("é").tokens == ["<s>", "▁", "<0xC3>", "<0xA9>"]


def test_a_gpt2_file_without_pre_splits_as_gpt2(tmp_path: Path) -> None:
    made = imported(tmp_path, lambda writer: gguf_files.add_byte_level_tokenizer(writer, None), "gpt2")
    assert split(made.tokenizer, "a 1234's") == ["a", " 1234", "'s"]


def test_tokenizer_file_is_read_by_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    made = _made["smollm"]
    made.tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(made.config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "<|im_start|>hello 123 w<|im_end|>"
    assert loaded(text)["input_ids"] == made.tokenizer.encode(text).ids
    assert loaded.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False) == (
        "<|im_start|>hello<|im_end|>"
    )
