"""Chat templates as Hugging Face writes them, in a sandbox."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from coldplate_server.request import ChatMessage

MAX_TEMPLATE_CHARACTERS = 1_000_000
# A layout adds a few hundred characters to a message; a template that writes far more than it was given is broken.
_MAX_GROWTH = 16
_MAX_FIXED_CHARACTERS = 1_000_000
_MAX_REASON_CHARACTERS = 300
_THINKING_SWITCH = "enable_thinking"  # as the templates of Qwen3 and others since name it


class TemplateRefusedError(Exception):
    """The template cannot lay this conversation out. The text is its own reason, or ours, for the caller."""


class _RaisedError(TemplateError):
    """What a template says through ``raise_exception``."""


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Also refuses the operators that make gigabytes out of a few characters."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (abs(left) > 1_000_000 or abs(right) > 64):
            raise TemplateError("a power in the chat template is too large")
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and len(sequence) * count > _MAX_FIXED_CHARACTERS:
                    raise TemplateError("a repetition in the chat template is too long")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """One compiled template with the special-token variables it may use (``bos_token`` and so on)."""

    def __init__(
        self,
        source: str,
        variables: Mapping[str, str],
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        """Raises ValueError naming what is wrong with the template."""
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise ValueError(
                f"the chat template has {len(source)} characters, at most {MAX_TEMPLATE_CHARACTERS} are taken"
            )
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
        try:
            self._template = environment.from_string(source)
            self.has_thinking_switch = _THINKING_SWITCH in meta.find_undeclared_variables(environment.parse(source))
        except TemplateSyntaxError as error:
            raise ValueError(f"the chat template does not parse: {error.message} (line {error.lineno})") from error
        self._variables = dict(variables)

    def render(self, messages: list[ChatMessage], *, add_generation_prompt: bool, thinking: bool | None = None) -> str:
        """Lay ``messages`` out; ``thinking`` sets the template's switch, None leaves it to the template.

        Raises TemplateRefusedError with the template's reason, or ours when it breaks.
        """
        turns = [{"role": message.role, "content": message.text} for message in messages]
        limit = _MAX_FIXED_CHARACTERS + _MAX_GROWTH * sum(len(message.text) for message in messages)
        switches = {} if thinking is None else {_THINKING_SWITCH: thinking}
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate(
                self._variables,
                messages=turns,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **switches,
            ):
                parts.append(part)
                length += len(part)
                if length > limit:
                    raise TemplateRefusedError("the model's chat template wrote far more than the conversation holds")
        except _RaisedError as error:
            raise TemplateRefusedError(f"the model's chat template refuses it: {_short(error)}") from error
        except TemplateError as error:
            raise TemplateRefusedError(f"the model's chat template cannot lay it out: {_short(error)}") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            # What a template raises when it meets messages it was not written for.
            raise TemplateRefusedError(
                "the model's chat template fails on this conversation; check its roles and their order"
            ) from error
        return "".join(parts)


def _raise(message: object) -> None:
    raise _RaisedError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _short(error: TemplateError) -> str:
    text = " ".join((error.message or "no reason given").split())
    return text if len(text) <= _MAX_REASON_CHARACTERS else text[:_MAX_REASON_CHARACTERS] + "…"
