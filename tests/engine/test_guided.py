"""Constraints: what compiles, what is refused and how fast, and what may come next."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldplate_engine.guided.compiler import ConstraintCompiler
from coldplate_engine.guided.guide import ConstraintError, Guide
from coldplate_engine.guided.load import load_constraints
from coldplate_engine.guided.mask import keep
from coldplate_engine.messages import Constraint
from support.random_model import BYTES_ENDS, CompileAtOnce
from support.tokenizers import BYTES_VOCABULARY, END_OF_TEXT_ID, TokenizerSpec, build

RULES = CompileAtOnce()


def guide_of(constraint: Constraint, answer: bytes = b"") -> Guide:
    guide = RULES.compiler.compile(constraint, list(answer))
    assert isinstance(guide, Guide), guide
    return guide


def may_follow(guide: Guide, drafts: bytes = b"") -> set[int]:
    row = np.zeros(BYTES_VOCABULARY + 3, dtype=np.float32)
    keep(row, guide.allowed(list(drafts)))
    return set(np.flatnonzero(row == 0).tolist())


def test_each_kind_says_what_may_come_and_when_the_end_may() -> None:
    schema = json.dumps({"type": "integer", "minimum": 10, "maximum": 12})
    for constraint, text in (
        (Constraint("regex", "1[0-2]"), b"1"),
        (Constraint("grammar", 'start: "1" DIGIT\nDIGIT: /[0-2]/'), b"1"),
        (Constraint("choices", choices=("10", "11", "12")), b"1"),
        (Constraint("json_schema", schema), b"1"),
    ):
        guide = guide_of(constraint)
        assert may_follow(guide) == {ord("1")}
        guide.advance(text[0])
        assert may_follow(guide) == set(b"012")
        assert not guide.satisfied
        guide.advance(ord("2"))
        assert guide.complete
        assert may_follow(guide) == {END_OF_TEXT_ID}


def test_a_grammar_that_may_go_on_lets_the_end_come_without_asking_for_it() -> None:
    guide = guide_of(Constraint("regex", "a+"), b"a")
    assert guide.satisfied
    assert not guide.complete
    assert may_follow(guide) == {ord("a"), END_OF_TEXT_ID}


def test_masks_behind_drafts_and_back() -> None:
    guide = guide_of(Constraint("regex", "abc|abd"))
    assert guide.fitting(b"abx") == 2
    guide.prepare(b"ab")
    assert may_follow(guide, b"ab") == set(b"cd")
    assert may_follow(guide, b"a") == set(b"b")
    assert may_follow(guide) == set(b"a")
    guide.advance(ord("a"))
    assert may_follow(guide) == set(b"b")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5, unique=True), st.integers(0, 40))
def test_any_choices_and_the_state_behind_any_part_of_one(choices: list[str], cut: int) -> None:
    constraint = Constraint("choices", choices=tuple(choices))
    word = choices[0].encode()
    cut = min(cut, len(word))
    followed = guide_of(constraint)
    for byte in word[:cut]:
        followed.advance(byte)
    rebuilt = guide_of(constraint, word[:cut])
    rest = {encoded[cut:][:1] for choice in choices if (encoded := choice.encode()).startswith(word[:cut])}
    expected = {part[0] for part in rest if part} | ({END_OF_TEXT_ID} if b"" in rest else set())
    assert may_follow(followed) == may_follow(rebuilt) == expected


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        (Constraint("regex", "[0-9"), "unclosed character class"),
        (Constraint("regex", r"[^\s\S]"), ""),
        (Constraint("grammar", "start: foo"), "unknown name"),
        (Constraint("grammar", "  "), "the grammar is empty"),
        (Constraint("grammar", 'start: start "a"'), ""),
        (Constraint("json_schema", '{"type":'), "no JSON"),
        (Constraint("json_schema", "[" * 100_000), "no JSON"),
        (Constraint("json_schema", "[]"), "must be an object"),
        (Constraint("json_schema", '{"type":"string","enum":[1]}'), "Unsatisfiable"),
        (Constraint("json_schema", '{"type":"integer","minimum":5,"maximum":3}'), "Unsatisfiable"),
        (Constraint("json_schema", '{"type":"array","items":{},"minItems":1000000000}'), "minItems is 1000000000"),
        (Constraint("json_schema", '{"properties":{"a":{"maxItems":1e9}}}'), "maxItems is 1000000000"),
        (Constraint("json_schema", '{"$ref":"#"}'), ""),
        (Constraint("json_schema", json.dumps({"enum": ["x" * 100] * 5000})), "characters"),
        (Constraint("choices"), "at least one"),
        (Constraint("choices", choices=("a", "")), "none of them empty"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_a_line(constraint: Constraint, said: str) -> None:
    found = RULES.compiler.compile(constraint, ())
    assert isinstance(found, ConstraintError)
    assert said in str(found)
    assert "\n" not in str(found)
    assert 5 < len(str(found)) < 400


def test_tokens_that_do_not_follow_the_constraint_are_an_error() -> None:
    constraint = Constraint("regex", "ab")
    found = RULES.compiler.compile(constraint, b"ax")
    assert isinstance(found, ConstraintError)
    assert "do not follow" in str(found)
    guide = guide_of(constraint)
    with pytest.raises(ConstraintError):
        guide.advance(ord("x"))


def compiler(**options: float) -> ConstraintCompiler:
    return ConstraintCompiler(build(TokenizerSpec()).to_str(), BYTES_ENDS, **options)  # type: ignore[arg-type]


def wait_for(compiler: ConstraintCompiler, constraint: Constraint) -> Guide | ConstraintError:
    results: list[Guide | ConstraintError] = []
    told = threading.Event()

    def done(result: Guide | ConstraintError) -> None:
        results.append(result)
        told.set()

    compiler.build(constraint, (), done)
    assert told.wait(30)
    return results[0]


def test_a_compilation_that_takes_too_long_is_given_up_and_others_go_on() -> None:
    impatient = compiler(time_limit_s=0.2)
    slow = Constraint("json_schema", '{"type":"integer","multipleOf":99991}')
    start = time.monotonic()
    found = wait_for(impatient, slow)
    assert isinstance(found, ConstraintError)
    assert "takes more than 0.2 s" in str(found)
    assert time.monotonic() - start < 3
    assert isinstance(wait_for(impatient, Constraint("regex", "a")), Guide)


def test_masks_are_made_in_another_thread() -> None:
    found = wait_for(compiler(), Constraint("regex", "a[bc]"))
    assert isinstance(found, Guide)
    found.prepare()
    assert may_follow(found) == {ord("a")}
    found.advance(ord("a"))
    found.prepare()
    assert may_follow(found) == set(b"bc")


def test_ids_beyond_the_tokenizer_are_never_allowed_and_a_smaller_model_is_no_trouble() -> None:
    bits = np.full(2, 0xFF, dtype=np.uint8)
    long, short = np.zeros(20, dtype=np.float32), np.zeros(10, dtype=np.float32)
    keep(long, bits)
    keep(short, bits)
    assert np.isinf(long).tolist() == [False] * 16 + [True] * 4
    assert not np.isinf(short).any()


def test_a_folder_without_a_usable_tokenizer_has_no_constraints(tmp_path: Path) -> None:
    folder = tmp_path
    assert load_constraints(folder, BYTES_ENDS) is None
    (folder / "tokenizer.json").write_text("{}")
    assert load_constraints(folder, BYTES_ENDS) is None
    (folder / "tokenizer.json").write_text(build(TokenizerSpec()).to_str())
    assert load_constraints(folder, BYTES_ENDS) is not None


def test_a_token_too_long_for_the_library_costs_only_constraints(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(build(TokenizerSpec(extra=("y" * 10_000,))).to_str())
    assert load_constraints(tmp_path, BYTES_ENDS) is None
