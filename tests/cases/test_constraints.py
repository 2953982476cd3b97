"""Answers under a constraint follow it, and constraints that nothing follows are refused at the door."""

import json
import re

import pytest

from support.client import both, request, stream, unary
from support.processes import Stack

pytestmark = pytest.mark.usefixtures("alive")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "seed": 4}])
def test_json_of_a_schema(service: Stack, options: dict[str, float]) -> None:
    message = request("give me one", model="chatty", json_schema=json.dumps(SCHEMA), max_tokens=150, **options)
    # A model of random weights would fill JSON with white space for ever.
    message.sampling.logit_bias.update(dict.fromkeys(map(ord, " \n\r\t"), -100.0))
    outcome = both(service, message)
    assert outcome.finish == "END_OF_TEXT", outcome.text
    value = json.loads(outcome.text)
    assert list(value) == ["name", "age", "kind"]
    assert isinstance(value["name"], str)
    assert 0 <= value["age"] <= 99
    assert value["kind"] in ("cat", "dog")


@pytest.mark.parametrize("seed", range(3))
def test_a_regular_expression(service: Stack, seed: int) -> None:
    pattern = "[a-c]{2,5}-[0-9]{3}"
    outcome = both(service, request("code:", model="chatty", regex=pattern, temperature=1.0, seed=seed, max_tokens=40))
    assert re.fullmatch(pattern, outcome.text)
    assert outcome.finish == "END_OF_TEXT"


def test_choices_of_several_scripts(service: Stack) -> None:
    texts = ["yes", "no", "vielleicht", "多分"]
    message = request("well?", model="chatty", temperature=1.0, seed=9, n=4, max_tokens=40)
    message.choices.texts.extend(texts)
    outcome = stream(service, message)
    assert outcome.ok, outcome.message
    assert all(choice.text in texts for choice in outcome.choices)


def test_a_grammar(service: Stack) -> None:
    grammar = 'start: item ("," item){1,3}\nitem: "x" | "y"'
    outcome = both(service, request("list:", model="chatty", grammar=grammar, temperature=1.0, seed=1, max_tokens=40))
    assert re.fullmatch("[xy](,[xy]){1,3}", outcome.text)


REFUSED = {
    "json_schema": [
        "{",
        "3",
        '{"type": "nope"}',
        '{"type": "integer", "minimum": 5, "maximum": 3}',
        '{"type": "integer", "multipleOf": 999983}',
        '{"type": "array", "items": {}, "minItems": 1000000000}',
    ],
    "regex": ["(", r"[^\s\S]"],
    "grammar": ['start: "a', 'start: start "a"'],
}


@pytest.mark.parametrize(("field", "text"), [(field, text) for field, texts in REFUSED.items() for text in texts])
def test_what_nothing_can_match_or_nobody_can_compile_is_refused(service: Stack, field: str, text: str) -> None:
    unary(service, request("hi", model="chatty", regex=f"warm{field}{len(text)}", max_tokens=1))
    outcome = stream(service, request("hi", model="chatty", max_tokens=4, **{field: text}))
    assert (outcome.code.name, outcome.fields) == ("INVALID_ARGUMENT", [f"request.{field}"])
    assert outcome.elapsed_s < 2
    assert not outcome.deltas


def test_a_constraint_goes_on_where_an_answer_was_cut(service: Stack) -> None:
    options = {"model": "chatty", "regex": "[a-h]{6,8}[0-9]{4}", "temperature": 1.0, "seed": 11, "token_ids": True}
    whole = unary(service, request("key:", max_tokens=40, **options))
    for count in range(1, len(whole.token_ids)):
        message = request("key:", max_tokens=40, **{**options, "seed": None})
        message.resume.emitted_token_ids.extend(whole.token_ids[:count])
        message.resume.seed = 11
        rest = unary(service, message)
        assert rest.ok, rest.message
        assert whole.text[:count] + rest.text == whole.text
