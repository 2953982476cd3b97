"""Chat templates: agreement with transformers, refusals, and the sandbox."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from coldplate_server.request import ChatMessage
from coldplate_server.text.template import ChatTemplate, TemplateRefusedError
from support import tokenizers

CHAT = [ChatMessage("system", "Be brief."), ChatMessage("user", " hi\n"), ChatMessage("assistant", "Hello <b>")]
TEMPLATES = {
    "chatml": tokenizers.CHATML,
    "start token": tokenizers.START_TOKEN_FIRST,
    "white space control": "{% for m in messages %}\n  {% if m.role == 'user' %}\nU: {{ m.content | trim }}\n"
    "  {% endif %}\n{% endfor %}\n{{ eos_token }}",
    "generation block": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "loop controls": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m['content'] }}{% endfor %}",
    "json": "{{ messages | tojson(indent=2) }}{{ messages[0] | tojson }}",
    "tools": "{% if tools is not none %}tools{% elif documents %}documents{% else %}{{ messages | length }}{% endif %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
}


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
@pytest.mark.parametrize("prompt", [True, False])
def test_lays_out_as_transformers_does(source: str, prompt: bool) -> None:
    reference = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizers.build(tokenizers.TokenizerSpec()), bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    expected = reference.apply_chat_template(
        [{"role": message.role, "content": message.text} for message in CHAT],
        chat_template=source,
        add_generation_prompt=prompt,
        tokenize=False,
    )
    template = ChatTemplate(source, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    assert template.render(CHAT, add_generation_prompt=prompt) == expected


def test_the_templates_own_reason_is_passed_on() -> None:
    template = ChatTemplate(tokenizers.ALTERNATING, {})
    with pytest.raises(TemplateRefusedError, match="Conversation roles must alternate"):
        template.render([ChatMessage("user", "a"), ChatMessage("user", "b")], add_generation_prompt=True)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[9].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ 'x' * 2000000000 }}",
        "{{ 10 ** 100000000 }}",
        "{% for a in range(90000) %}{% for b in range(90000) %}xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ unknown_function() }}",
        "{% include 'other' %}",
    ],
)
def test_a_broken_or_hostile_template_is_a_refusal(source: str) -> None:
    template = ChatTemplate(source, {})
    with pytest.raises(TemplateRefusedError) as caught:
        template.render([ChatMessage("user", "a")], add_generation_prompt=True)
    assert len(str(caught.value)) < 500


def test_a_template_that_does_not_parse_names_the_line() -> None:
    with pytest.raises(ValueError, match=r"line 2"):
        ChatTemplate("fine\n{% for %}", {})


def test_today_comes_from_the_given_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, now=lambda: datetime(2025, 7, 3, tzinfo=UTC))
    assert template.render([], add_generation_prompt=False) == "03 Jul 2025"


def test_importing_the_text_layer_needs_no_model_library() -> None:
    folder = Path(__file__).parents[2] / "server/coldplate_server/text"
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    assert "import torch" not in source
    assert "transformers" not in source
