"""The thinking in front of an answer, whatever the pieces it comes in, and where its marks come from."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from coldplate_server.request import ChatMessage, Conversation
from coldplate_server.text.reasoning import Thinking, ThinkingMarks, ThinkingReader
from coldplate_server.text.tokenizer import Tokenizer
from support import text_models, tokenizers
from support.tokenizers import CHATML, END_THINK, END_THINK_ID, THINK, THINK_ID, THINKING, TokenizerSpec

MARKS = ThinkingMarks(THINK_ID, END_THINK_ID, (END_THINK_ID, 10, 10))
TURN = Conversation((ChatMessage("user", "hi"),))


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    spec = TokenizerSpec(chat_template=THINKING, extra=(THINK, END_THINK))
    return text_models.load(tmp_path_factory.mktemp("thinker"), spec)


def read(tokenizer: Tokenizer, ids: list[int], cuts: list[int], *, is_open: bool = False) -> tuple[str, int, int]:
    """The text of the thinking, its tokens, and how many tokens it took."""
    reader = ThinkingReader(Thinking(MARKS, is_open), tokenizer.detokenizer())
    text, at = "", 0
    for end in [*sorted(cuts), len(ids)]:
        while at < end and not reader.over:
            new, count = reader.push(ids[at:end])
            text, at = text + new, at + count
            if not count:
                break
    if not reader.over:
        text += reader.finish()
    return text, reader.tokens, at


@given(st.lists(st.integers(0, 30)))
def test_pieces_of_any_size_give_the_same_thinking(thinker: Tokenizer, cuts: list[int]) -> None:
    thought = list(" \nhüm, 中\n \n".encode())
    ids = [THINK_ID, *thought, END_THINK_ID, 65, 66]
    assert read(thinker, ids, cuts) == ("hüm, 中", len(thought) + 2, len(thought) + 2)
    assert read(thinker, ids[1:], cuts, is_open=True) == ("hüm, 中", len(thought) + 1, len(thought) + 1)


def test_what_does_not_begin_with_the_mark_is_answer(thinker: Tokenizer) -> None:
    assert read(thinker, [65, THINK_ID, 66, END_THINK_ID], []) == ("", 0, 0)


def test_thinking_that_ends_inside_a_character(thinker: Tokenizer) -> None:
    assert read(thinker, [THINK_ID, 65, 0xE4, END_THINK_ID], [])[0] == "A\ufffd"
    assert read(thinker, [THINK_ID, 65, 32, 0xE4], [])[0] == "A \ufffd"
    assert read(thinker, [THINK_ID, 65, 32, 10], [])[0] == "A"


def test_thinking_of_nothing(thinker: Tokenizer) -> None:
    assert read(thinker, [THINK_ID, END_THINK_ID, 65], []) == ("", 2, 2)
    assert read(thinker, [END_THINK_ID, 65], [], is_open=True) == ("", 1, 1)


def test_marks_are_single_tokens_and_qwen3_has_its_own_way_to_close(tmp_path: Path, thinker: Tokenizer) -> None:
    assert thinker.thinking_marks == MARKS
    text_models.load(tmp_path, TokenizerSpec(chat_template=THINKING, extra=(THINK, END_THINK)))
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["Qwen3ForCausalLM"]}))
    marks = Tokenizer.load(tmp_path).thinking_marks
    assert marks is not None
    assert marks.close_ids.count(END_THINK_ID) == 1
    before, after = marks.close_ids[: marks.close_ids.index(END_THINK_ID)], marks.close_ids[-2:]
    assert bytes(before).decode().startswith("\n\nConsidering the limited time by the user")
    assert bytes(after) == b"\n\n"


def test_a_model_without_the_marks_does_not_think(tmp_path: Path) -> None:
    plain = text_models.load(tmp_path / "a", TokenizerSpec(chat_template=THINKING))
    assert plain.thinking_marks is None
    assert not plain.can_switch_thinking
    assert not plain.opens_thinking([1, 2])


def test_the_switch_is_found_in_the_template(tmp_path: Path, thinker: Tokenizer) -> None:
    assert thinker.can_switch_thinking
    fixed = text_models.load(tmp_path / "b", TokenizerSpec(chat_template=CHATML, extra=(THINK, END_THINK)))
    assert fixed.thinking_marks is not None
    assert not fixed.can_switch_thinking
    unset, on = (thinker.encode_conversation(TURN, thinking=value) for value in (None, True))
    assert unset == on
    assert thinker.encode_conversation(TURN, thinking=False) == [*on, THINK_ID, 10, 10, END_THINK_ID, 10, 10]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([65, THINK_ID], True),
        ([65, THINK_ID, 10], True),
        ([65, THINK_ID, 10, 32, 10], True),
        ([65, THINK_ID, 10, 66], False),
        ([65, THINK_ID, 10, END_THINK_ID, 10], False),
        ([THINK_ID, *[10] * 20], False),
        ([65], False),
    ],
)
def test_a_prompt_opens_the_thinking_at_its_very_end(thinker: Tokenizer, ids: list[int], expected: bool) -> None:
    assert thinker.opens_thinking(ids) is expected


def test_a_final_message_may_break_off_inside_its_thinking(thinker: Tokenizer) -> None:
    assert thinker.opens_thinking([65], "<think>\nso far")
    assert not thinker.opens_thinking([65], "<think>\nso far</think> and")
    assert not thinker.opens_thinking([65], "no thinking")


def test_marks_that_are_no_special_tokens_count_too(tmp_path: Path) -> None:
    """Qwen3's are added tokens that decoding keeps."""
    backend = tokenizers.build(TokenizerSpec())
    backend.add_tokens([AddedToken(THINK, special=False), AddedToken(END_THINK, special=False)])
    marks = text_models.load_backend(tmp_path / "c", backend).thinking_marks
    assert marks is not None
    assert (marks.start_id, marks.end_id) == (THINK_ID, END_THINK_ID)
