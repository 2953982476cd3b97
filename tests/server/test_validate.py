"""Every unusable field is named, all at once; what is not served yet is named, too."""

from typing import Any

import pytest
from google.protobuf import json_format

from coldplate.v1 import generation_pb2 as pb
from coldplate_server.errors import FeatureUnimplemented, InvalidRequest
from coldplate_server.rpc.validate import check_generation, check_stream_options


def request(**fields: Any) -> pb.GenerateRequest:
    """A request with ``fields`` as JSON, and a text where no input is given."""
    inputs = {"text", "token_ids", "conversation", "no_input"}
    values = {} if inputs & fields.keys() else {"text": "hi"}
    fields.pop("no_input", None)
    return json_format.ParseDict(values | fields, pb.GenerateRequest())


def turn(role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"role": role, **fields}


INVALID: list[tuple[dict[str, Any], str, str]] = [
    ({"sampling": {"temperature": "NaN"}}, "sampling.temperature", "nan"),
    ({"sampling": {"temperature": "Infinity"}}, "sampling.temperature", "0 to 100"),
    ({"sampling": {"temperature": -0.1}}, "sampling.temperature", "-0.1"),
    ({"sampling": {"temperature": 100.5}}, "sampling.temperature", "100.5"),
    ({"sampling": {"top_p": "NaN"}}, "sampling.top_p", "nan"),
    ({"sampling": {"top_p": 0}}, "sampling.top_p", "above 0"),
    ({"sampling": {"top_p": 1.5}}, "sampling.top_p", "at most 1"),
    ({"sampling": {"top_k": -1}}, "sampling.top_k", "-1"),
    ({"sampling": {"min_p": -0.5}}, "sampling.min_p", "0 to 1"),
    ({"sampling": {"min_p": "NaN"}}, "sampling.min_p", "nan"),
    ({"sampling": {"n": 0}}, "sampling.n", "1 to 64"),
    ({"sampling": {"n": 5_000_000}}, "sampling.n", "1 to 64"),
    ({"sampling": {"repetition_penalty": 0}}, "sampling.repetition_penalty", "above 0"),
    ({"sampling": {"repetition_penalty": -1}}, "sampling.repetition_penalty", "-1"),
    ({"sampling": {"repetition_penalty": "Infinity"}}, "sampling.repetition_penalty", "inf"),
    ({"sampling": {"presence_penalty": 2.5}}, "sampling.presence_penalty", "-2 to 2"),
    ({"sampling": {"frequency_penalty": "NaN"}}, "sampling.frequency_penalty", "-2 to 2"),
    ({"sampling": {"logit_bias": {"-1": 5}}}, "sampling.logit_bias[-1]", "below 0"),
    ({"sampling": {"logit_bias": {"3": 500}}}, "sampling.logit_bias[3]", "-100 to 100"),
    ({"stopping": {"max_tokens": 0}}, "stopping.max_tokens", "at least 1"),
    ({"stopping": {"max_tokens": -1}}, "stopping.max_tokens", "-1"),
    ({"stopping": {"min_tokens": -1}}, "stopping.min_tokens", "-1"),
    ({"stopping": {"min_tokens": 10, "max_tokens": 4}}, "stopping.min_tokens", "max_tokens"),
    ({"stopping": {"stop_sequences": ["a", ""]}}, "stopping.stop_sequences[1]", "empty"),
    ({"stopping": {"stop_sequences": [f"zz{i}" for i in range(5000)]}}, "stopping.stop_sequences", "at most 16"),
    ({"stopping": {"stop_sequences": ["x" * 20_000]}}, "stopping.stop_sequences[0]", "20000 characters"),
    ({"stopping": {"stop_token_ids": [1, -2]}}, "stopping.stop_token_ids[1]", "-2"),
    ({"stopping": {"stop_token_ids": list(range(2000))}}, "stopping.stop_token_ids", "1024"),
    ({"reporting": {"logprobs": 1_000_000_000}}, "reporting.logprobs", "0 to 20"),
    ({"reporting": {"logprobs": -1}}, "reporting.logprobs", "0 to 20"),
    ({"reporting": {"prompt_logprobs": -1}}, "reporting.prompt_logprobs", "0 to 20"),
    ({"request_id": "x" * 300}, "request_id", "256"),
    ({"request_id": "a\nb"}, "request_id", "printable"),
    ({"scheduling": {"priority": 9}}, "scheduling.priority", "9"),
    ({"scheduling": {"queue_timeout": "-1s"}}, "scheduling.queue_timeout", "at least 0"),
    ({"fallback": 77}, "fallback", "77"),
    ({"no_input": True}, "input", "missing"),
    ({"token_ids": {}}, "token_ids.ids", "empty"),
    ({"token_ids": {"ids": [1, -5]}}, "token_ids.ids[1]", "-5"),
    ({"conversation": {}}, "conversation.messages", "empty"),
    ({"conversation": {"messages": [{"text": "x"}]}}, "conversation.messages[0].role", "empty"),
    ({"conversation": {"messages": [turn("r" * 20_000)]}}, "conversation.messages[0].role", "20000 characters"),
    (
        {"conversation": {"messages": [turn(text="x", parts=[{"text": "y"}])]}},
        "conversation.messages[0].parts",
        "either text or parts",
    ),
    ({"conversation": {"messages": [turn(parts=[{}])]}}, "conversation.messages[0].parts[0]", "empty"),
    (
        {"conversation": {"messages": [turn(text="x")], "continue_final_message": True}},
        "conversation.continue_final_message",
        "assistant",
    ),
    ({"resume": {"emitted_token_ids": [-1]}}, "resume.emitted_token_ids[0]", "-1"),
    ({"resume": {"seed": "4"}, "sampling": {"seed": "5"}}, "resume.seed", "5"),
    (
        {"resume": {"emitted_token_ids": [1, 2, 3]}, "stopping": {"max_tokens": 2}},
        "resume.emitted_token_ids",
        "max_tokens",
    ),
    ({"reasoning": {"budget_tokens": -1}}, "reasoning.budget_tokens", "-1"),
    ({"resume": {"emitted_token_ids": [1]}, "sampling": {"n": 2}}, "sampling.n", "resume"),
    ({"json_schema": ""}, "json_schema", "empty"),
    ({"grammar": ""}, "grammar", "empty"),
    ({"regex": "a" * 200_000}, "regex", "200000 bytes"),
    ({"choices": {}}, "choices.texts", "empty"),
    ({"choices": {"texts": ["a", ""]}}, "choices.texts[1]", "empty"),
    ({"choices": {"texts": ["a"] * 2000}}, "choices.texts", "at most 1024"),
    ({"choices": {"texts": ["a" * 1000] * 1000}}, "choices", "1000000 bytes"),
]


@pytest.mark.parametrize(("fields", "path", "words"), INVALID, ids=[f"{row[1]}-{row[2]}" for row in INVALID])
def test_an_unusable_field_is_named(fields: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_generation(request(**fields), "request.")
    (violation,) = caught.value.violations
    assert violation.field == f"request.{path}"
    assert words in violation.description
    assert len(violation.description) < 300


UNSERVED: list[tuple[dict[str, Any], str]] = [
    ({"conversation": {"messages": [turn()], "tools": [{"name": "f"}]}}, "conversation.tools"),
    ({"conversation": {"messages": [turn(tool_calls=[{"name": "f"}])]}}, "conversation.messages[0].tool_calls"),
    ({"conversation": {"messages": [turn("tool", tool_call_id="1")]}}, "conversation.messages[0].tool_call_id"),
    (
        {"conversation": {"messages": [turn(parts=[{"text": "a"}, {"image": {"url": "x"}}])]}},
        "conversation.messages[0].parts[1].image",
    ),
]


@pytest.mark.parametrize(("fields", "path"), UNSERVED, ids=[row[1] for row in UNSERVED])
def test_what_is_not_served_yet_is_named(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(FeatureUnimplemented, match="not served") as caught:
        check_generation(request(**fields), "request.")
    assert caught.value.facts == {"field": f"request.{path}"}


VALID: list[dict[str, Any]] = [
    {},
    {"text": ""},
    {"sampling": {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 1, "seed": "18446744073709551615", "n": 1}},
    {"sampling": {"temperature": 1e-38, "top_p": 1e-4, "repetition_penalty": 1}},
    {"stopping": {"max_tokens": 2_147_483_647, "stop_sequences": ["x" * 1024] * 16}},
    {"reporting": {"text": False}},
    {"fallback": "FALLBACK_ANY", "scheduling": {"priority": "PRIORITY_HIGH", "queue_timeout": "0.5s"}},
    {"conversation": {"messages": [turn(), turn("assistant")], "continue_final_message": True}},
    {"sampling": {"n": 64, "presence_penalty": -2, "frequency_penalty": 2, "logit_bias": {"0": -100, "9": 100}}},
    {"stopping": {"max_tokens": 4, "min_tokens": 4}},
    {"reporting": {"logprobs": 0, "prompt_logprobs": 20}},
    {"json_schema": "{}"},
    {"regex": ""},
    {"choices": {"texts": ["a"] * 1024}},
    {"grammar": 'start: "a"'},
    {"reasoning": {"enabled": False, "budget_tokens": 0}},
    {"resume": {"emitted_token_ids": [1, 2]}, "stopping": {"max_tokens": 2}},
    {"resume": {"emitted_token_ids": [1, 2], "seed": "5"}, "sampling": {"seed": "5"}, "stopping": {"max_tokens": 3}},
]


@pytest.mark.parametrize("fields", VALID)
def test_the_edges_of_what_is_allowed_pass(fields: dict[str, Any]) -> None:
    check_generation(request(**fields))


def test_all_violations_come_at_once_and_before_what_is_not_served() -> None:
    tools = {"messages": [turn()], "tools": [{"name": "f"}]}
    message = request(sampling={"temperature": -1, "top_k": -1}, stopping={"max_tokens": 0}, conversation=tools)
    with pytest.raises(InvalidRequest) as caught:
        check_generation(message)
    paths = [violation.field for violation in caught.value.violations]
    assert paths == ["sampling.temperature", "sampling.top_k", "stopping.max_tokens"]


@pytest.mark.parametrize(("seconds", "nanos"), [(-1, 0), (1, -5), (0, 2_000_000_000), (10**12, 0)])
def test_durations_must_be_valid(seconds: int, nanos: int) -> None:
    options = pb.StreamOptions()
    options.flush_interval.seconds, options.flush_interval.nanos = seconds, nanos
    with pytest.raises(InvalidRequest) as caught:
        check_stream_options(options, "options.")
    assert [violation.field for violation in caught.value.violations] == ["options.flush_interval"]
