"""Text from ids: D1, D3, D4, D5, D11 and agreement with the tokenizers library."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from coldplate_server.text.tokenizer import Tokenizer
from support import text_models
from support.tokenizers import BYTES_VOCABULARY, IM_END_ID, META_VOCABULARY, TokenizerSpec, build

BYTES = TokenizerSpec("bytes")


@pytest.fixture(scope="module")
def by_bytes(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return text_models.load(tmp_path_factory.mktemp("bytes"), BYTES)


def byte_fallback_backend() -> Backend:
    """The decoder of Llama 2: a space mark, bytes for unknown characters, the first space stripped."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁hello", "▁world", "lo", "中"]
    backend = Backend(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return backend


def word_piece_backend(cleanup: bool) -> Backend:
    names = ["[UNK]", "hel", "##lo", "world", "##s", ".", ",", "don", "'", "t", "n't"]
    backend = Backend(models.WordPiece(vocab={name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece("##", cleanup)
    return backend


def suffix_backend() -> Backend:
    names = ["hel", "lo</w>", "world</w>", "a</w>", "b"]
    backend = Backend(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    backend.decoder = decoders.BPEDecoder("</w>")
    return backend


def plain_backend() -> Backend:
    names = ["one", "two", "three"]
    return Backend(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="one"))


def fused_backend(*steps: decoders.Decoder) -> Backend:
    names = ["a", "b", " ", "x"]
    backend = Backend(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    backend.decoder = decoders.Sequence([decoders.Fuse(), *steps])
    return backend


def ctc_backend() -> Backend:
    names = ["<pad>", "|", "h", "e", "l"]
    backend = Backend(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<pad>"))
    backend.decoder = decoders.CTC("<pad>", "|", False)
    return backend


OTHER = {
    "word pieces, tidied": word_piece_backend(True),
    "word pieces": word_piece_backend(False),
    "word-end suffix": suffix_backend(),
    "no decoder": plain_backend(),
    "replaced when fused": fused_backend(decoders.Replace("x", "yy")),
    "repeats merged": ctc_backend(),
}


def one_by_one(tokenizer: Tokenizer, ids: list[int], *, special_tokens: bool = False) -> list[str]:
    detokenizer = tokenizer.detokenizer(special_tokens=special_tokens)
    return [*(detokenizer.push([index]) for index in ids), detokenizer.finish()]


@given(ids=st.lists(st.integers(0, BYTES_VOCABULARY - 1) | st.sampled_from([0xE4, 0xB8, 0xAD, 0xF0, 0x9F, 0xED, 0xA0])))
def test_bytes_agree_with_the_library_for_any_ids(by_bytes: Tokenizer, ids: list[int]) -> None:
    backend = build(BYTES)
    for special_tokens in (False, True):
        expected = backend.decode(ids, skip_special_tokens=not special_tokens)
        assert "".join(one_by_one(by_bytes, ids, special_tokens=special_tokens)) == expected
        assert by_bytes.decode(ids, special_tokens=special_tokens) == expected


@given(text=st.text(), cut=st.integers(0, 40))
def test_bytes_give_back_any_text(by_bytes: Tokenizer, text: str, cut: int) -> None:
    detokenizer = by_bytes.detokenizer()
    ids = list(text.encode())
    assert detokenizer.push(ids[:cut]) + detokenizer.push(ids[cut:]) + detokenizer.finish() == text


def test_split_characters_never_show_as_replacements(by_bytes: Tokenizer) -> None:
    text = "ďábel 中文 😀🤣"
    deltas = one_by_one(by_bytes, list(text.encode()))
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_undecodable_output_is_sent_as_it_comes(by_bytes: Tokenizer) -> None:
    deltas = one_by_one(by_bytes, [0x80] * 1500)
    assert deltas[:16] == ["\ufffd"] * 16
    assert "".join(deltas) == "\ufffd" * 1500


@pytest.mark.parametrize(
    ("data", "text"), [(b"\xe4\xb8 ok", "\ufffd ok"), ("中中".encode()[:4], "中\ufffd"), (b"\xe4\xb8", "\ufffd")]
)
def test_half_a_character_is_one_replacement(by_bytes: Tokenizer, data: bytes, text: str) -> None:
    assert "".join(one_by_one(by_bytes, list(data))) == text


def test_special_tokens_are_silent_unless_asked_for(by_bytes: Tokenizer) -> None:
    ids = [ord("a"), IM_END_ID, ord("b")]
    assert by_bytes.decode(ids) == "ab"
    assert by_bytes.decode(ids, special_tokens=True) == "a<|im_end|>b"


def test_a_special_token_does_not_tear_a_character(by_bytes: Tokenizer) -> None:
    assert by_bytes.decode([0xE4, 0xB8, IM_END_ID, 0xAD]) == "中"


def test_ids_beyond_the_vocabulary_add_nothing(by_bytes: Tokenizer) -> None:
    assert "".join(one_by_one(by_bytes, [ord("a"), 10**6, ord("b")])) == "ab"


@given(ids=st.lists(st.integers(0, len(META_VOCABULARY) - 1)))
def test_space_marks_agree_with_the_library(tmp_path_factory: pytest.TempPathFactory, ids: list[int]) -> None:
    backend = build(TokenizerSpec("meta"))
    tokenizer = text_models.load_backend(tmp_path_factory.mktemp("meta", numbered=True), backend)
    assert "".join(one_by_one(tokenizer, ids)) == backend.decode(ids)


def test_spaces_between_words_are_kept(tmp_path: Path) -> None:
    tokenizer = text_models.load(tmp_path, TokenizerSpec("meta"))
    ids = tokenizer.encode("Dear Name, I hope")
    assert "".join(one_by_one(tokenizer, ids)) == "Dear Name, I hope"


@given(text=st.text("helo wrd中é\n ", max_size=30), data=st.data())
def test_byte_fallback_agrees_with_the_library_on_text(
    tmp_path_factory: pytest.TempPathFactory, text: str, data: st.DataObject
) -> None:
    backend = byte_fallback_backend()
    tokenizer = text_models.load_backend(tmp_path_factory.mktemp("fallback", numbered=True), backend)
    ids: list[int] = []
    for char in text:
        ids += [257] if char == " " else [byte + 1 for byte in char.encode()]
        ids += data.draw(st.sampled_from([[], [], [258], [261], [262]]))
    assert "".join(one_by_one(tokenizer, ids)) == backend.decode(ids)


@pytest.mark.parametrize("backend", OTHER.values(), ids=OTHER.keys())
@given(data=st.data())
def test_other_decoders_agree_with_the_library(
    tmp_path_factory: pytest.TempPathFactory, backend: Backend, data: st.DataObject
) -> None:
    tokenizer = text_models.load_backend(tmp_path_factory.mktemp("other", numbered=True), backend)
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() - 1), max_size=40))
    assert "".join(one_by_one(tokenizer, ids)) == backend.decode(ids)


def test_text_that_was_sent_is_not_withdrawn_by_a_later_token(tmp_path: Path) -> None:
    tokenizer = text_models.load_backend(tmp_path, fused_backend(decoders.Replace("ab", "c")))
    deltas = one_by_one(tokenizer, [0, 1, *([3] * 12)])
    assert deltas[:2] == ["a", ""]
    assert set("".join(deltas[2:])) == {"x"}


def test_a_token_costs_the_same_after_a_thousand(by_bytes: Tokenizer) -> None:
    detokenizer = by_bytes.detokenizer()

    def seconds(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            detokenizer.push([0xE4])
            detokenizer.push([0xB8])
            detokenizer.push([0xAD])
        return time.perf_counter() - start

    seconds(100)
    early = min(seconds(200) for _ in range(5))
    seconds(20_000)
    late = min(seconds(200) for _ in range(5))
    assert late < 3 * early
