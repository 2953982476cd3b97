"""What an answer must be, as the request says it."""

import json
from collections.abc import Mapping, Sequence

from coldplate.v1 import generation_pb2
from coldplate_client.text import check_text


def set_constraint(
    request: generation_pb2.GenerateRequest,
    json_schema: str | Mapping[str, object] | None,
    regex: str | None,
    choices: Sequence[str] | None,
    grammar: str | None,
) -> None:
    """Set the one that is given. Raises ValueError for two, and for what cannot be sent, naming the argument."""
    given = {"json_schema": json_schema, "regex": regex, "choices": choices, "grammar": grammar}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)}: an answer has one constraint")
    if json_schema is not None:
        text = json_schema if isinstance(json_schema, str) else _schema_text(json_schema)
        request.json_schema = check_text("json_schema", text)
    elif regex is not None:
        request.regex = check_text("regex", regex)
    elif choices is not None:
        if isinstance(choices, str):
            raise TypeError("choices: expected a list of texts, got one text")
        texts = [check_text(f"choices[{at}]", text) for at, text in enumerate(choices)]
        request.choices.CopyFrom(generation_pb2.Choices(texts=texts))
    elif grammar is not None:
        request.grammar = check_text("grammar", grammar)


def _schema_text(schema: Mapping[str, object]) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"json_schema: {error}") from None
