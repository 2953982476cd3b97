"""Constraints are refused at the door, by name and soon, whatever they would do to the compiler."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from coldplate_server.errors import InvalidRequest
from coldplate_server.request import Constraint
from coldplate_server.text.constraint import ConstraintChecks
from coldplate_server.text.constraint_child import Checker

GOOD = [
    ("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'),
    ("json_schema", "{}"),
    ("regex", "[a-z]{3,9}"),
    ("regex", ""),
    ("grammar", 'start: "a" b+\nb: "x" | "y"'),
]
BAD = [
    ("json_schema", "{", "JSON"),
    ("json_schema", "[1]", "object or boolean"),
    ("json_schema", '{"type": "nope"}', "nope"),
    ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "minimum"),
    ("json_schema", '{"$ref": "#"}', "nothing can match"),
    ("json_schema", '{"a":' * 5000 + "1" + "}" * 5000, ""),
    ("regex", "(", "unclosed group"),
    ("regex", r"a\b(?=b)", "look"),
    ("regex", r"[^\s\S]", "nothing can match"),
    ("grammar", 'start: "a', "lexer error"),
    ("grammar", 'begin: "a"', "start"),
    ("grammar", 'start: start "a"', "nothing can match"),
]
ABSURD = [
    ("json_schema", '{"type": "integer", "multipleOf": 999983}', "to compile"),
    ("json_schema", '{"type": "array", "items": {}, "minItems": 1000000000}', "to compile"),
]


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker()


@pytest.fixture
async def checks() -> AsyncIterator[ConstraintChecks]:
    made = ConstraintChecks()
    yield made
    await made.close()


@pytest.mark.parametrize(("kind", "text"), GOOD)
def test_what_can_be_matched_is_taken(checker: Checker, kind: str, text: str) -> None:
    assert checker.problem_of(kind, [text]) is None


@pytest.mark.parametrize("texts", [["yes", "no"], ['a\x01\x7f"\\', "\n", "😀é中"], ["x", "x"]])
def test_choices_of_any_characters_are_taken(checker: Checker, texts: list[str]) -> None:
    assert checker.problem_of("choices", texts) is None


@pytest.mark.parametrize(("kind", "text", "words"), BAD)
def test_what_is_malformed_or_matches_nothing_is_named(checker: Checker, kind: str, text: str, words: str) -> None:
    problem = checker.problem_of(kind, [text])
    assert problem
    assert words in problem
    assert "\n" not in problem
    assert len(problem) < 400


@pytest.mark.parametrize(("kind", "text", "words"), ABSURD)
async def test_what_would_never_end_is_refused_and_the_next_is_checked(
    checks: ConstraintChecks, kind: str, text: str, words: str
) -> None:
    await checks.check(Constraint("regex", ("first",)), "regex")  # the children are up
    await checks.check(Constraint("regex", ("second",)), "regex")
    began = time.monotonic()
    with pytest.raises(InvalidRequest) as refused:
        await checks.check(Constraint(kind, (text,)), f"request.{kind}")
    assert time.monotonic() - began < 2
    assert refused.value.violations[0].field == f"request.{kind}"
    assert words in refused.value.message
    for text in ("a", "b", "c"):
        await checks.check(Constraint("regex", (text,)), "regex")


async def test_the_loop_goes_on_while_a_constraint_is_compiled(checks: ConstraintChecks) -> None:
    await checks.check(Constraint("regex", ("first",)), "regex")
    slow = asyncio.create_task(checks.check(Constraint(*ABSURD[0][:1], (ABSURD[0][1],)), "json_schema"))
    longest, last = 0.0, time.monotonic()
    while not slow.done():
        await asyncio.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    assert longest < 0.3
    with pytest.raises(InvalidRequest):
        await slow


async def test_a_check_that_is_given_up_leaves_a_checker_that_works(checks: ConstraintChecks) -> None:
    for _ in range(3):
        given_up = asyncio.create_task(checks.check(Constraint("json_schema", (ABSURD[0][1],)), "json_schema"))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
    await checks.check(Constraint("json_schema", ("{}",)), "json_schema")
    with pytest.raises(InvalidRequest):
        await checks.check(Constraint("json_schema", ("false",)), "json_schema")


async def test_what_was_found_out_is_remembered() -> None:
    checks = ConstraintChecks()
    constraint = Constraint("regex", ("(",))
    with pytest.raises(InvalidRequest):
        await checks.check(constraint, "regex")
    await checks.close()
    with pytest.raises(InvalidRequest) as again:
        await checks.check(constraint, "request.regex")
    assert again.value.violations[0].field == "request.regex"
    await checks.close()
