"""Constraints as llguidance's grammars, and what is refused before it is tried."""

import json
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from coldplate_engine.guided.guide import ConstraintError
from coldplate_engine.messages import Constraint

MAX_BYTES = 256 * 1024
# llguidance unrolls these counts, and ends the process when there is no memory for them.
_UNROLLED = frozenset({"minItems", "maxItems", "minProperties", "maxProperties"})
_MOST_UNROLLED = 20_000
_DEEPEST = 100
# Between JSON's tokens. A small model that may go on for ever does.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"


def parser_limits() -> LLParserLimits:
    return LLParserLimits(max_grammar_size=_MOST_UNROLLED, verbose_errors=False)


def grammar_of(constraint: Constraint) -> str:
    """The grammar in llguidance's form; not checked yet. Raises ConstraintError for what is not worth a try."""
    size = len(constraint.text) + sum(len(choice) for choice in constraint.choices)
    if size > MAX_BYTES:
        raise ConstraintError(f"the constraint has {size} characters: at most {MAX_BYTES} are taken")
    match constraint.kind:
        case "json_schema":
            return _json_grammar(constraint.text)
        case "regex":
            return str(LLMatcher.grammar_from_regex(constraint.text))
        case "choices":
            return _choice_grammar(constraint.choices)
        case "grammar":
            if not constraint.text.strip():
                raise ConstraintError("the grammar is empty")
            return str(LLMatcher.grammar_from_lark(constraint.text))


def _json_grammar(text: str) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"the JSON schema is no JSON: {error}") from None
    if schema is True:
        text = "{}"
    elif not isinstance(schema, dict):
        raise ConstraintError("the JSON schema must be an object")
    _check(schema)
    try:
        return str(LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": _WHITESPACE}))
    except ValueError as error:
        raise ConstraintError(f"the JSON schema cannot be used: {error}") from None


def _check(schema: Any) -> None:
    pending = [(schema, 0)]
    while pending:
        value, depth = pending.pop()
        if depth > _DEEPEST:
            raise ConstraintError(f"the JSON schema is nested more than {_DEEPEST} deep")
        if isinstance(value, dict):
            for name in _UNROLLED & value.keys():
                count = value[name]
                if isinstance(count, int | float) and count > _MOST_UNROLLED:
                    raise ConstraintError(f"{name} is {count}: at most {_MOST_UNROLLED} is taken")
            pending += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list):
            pending += [(item, depth + 1) for item in value]


def _choice_grammar(choices: tuple[str, ...]) -> str:
    if not choices or not all(choices):
        raise ConstraintError("choices: expected at least one, and none of them empty")
    return str(LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(choice) for choice in choices)))
