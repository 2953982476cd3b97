"""Whatever a request holds, its answer is OK or a typed status, soon, and nobody else notices."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldplate.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    control_pb2,
    control_pb2_grpc,
    device_pb2,
    device_pb2_grpc,
    generation_pb2,
    token_pb2,
    token_pb2_grpc,
)
from support import case_models
from support.any_message import messages
from support.case_models import alphabet_answer
from support.client import Alive, StreamCall, request, stream, unary
from support.processes import SLOW_DEVICE, Stack

PROMPT = "x" * 10
UNTYPED = ("UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED", "CANCELLED", "DATA_LOSS")
ANYTHING = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A fast model with a chat template, and one with slow steps whose streams are the neighbours."""
    with Stack(
        {"chatty": case_models.chatty(), "alphabet": case_models.alphabet()},
        workers=["chatty@cpu", f"alphabet@{SLOW_DEVICE}"],
        engine_args=["kv-cache-tokens=4096", "test-faults"],
    ) as running:
        yield running


@pytest.fixture
def alive(stack: Stack) -> Iterator[Alive]:
    check = Alive(stack, "alphabet")
    yield check
    check.check()


@pytest.fixture
def neighbour(stack: Stack) -> Iterator[None]:
    """A stream that runs meanwhile, and is exact."""
    call = StreamCall(stack, request(PROMPT, model="alphabet", max_tokens=200), timeout_s=None)
    call.read_deltas(1).start_reading()
    yield
    assert call.result().text == alphabet_answer(len(PROMPT), 200)


def choices(texts: list[str]) -> generation_pb2.Choices:
    return generation_pb2.Choices(texts=texts)


def asked(message: generation_pb2.GenerateRequest) -> generation_pb2.GenerateRequest:
    """A constraint and little else, so that it is taken up."""
    constraint = message.WhichOneof("constraint") or "regex"
    plain = generation_pb2.GenerateRequest(model="chatty", text="hello")
    plain.stopping.max_tokens = 8
    value = getattr(message, constraint)
    if isinstance(value, str):
        setattr(plain, constraint, value)
    else:
        getattr(plain, constraint).CopyFrom(value)
    return plain


WHOLE = messages(generation_pb2.GenerateRequest, model=st.just("chatty"))
# More of these are taken up.
KNOBS = messages(
    generation_pb2.GenerateRequest,
    model=st.just("chatty"),
    text=st.just("hello"),
    sampling=messages(generation_pb2.Sampling, n=st.sampled_from((1, 1, 3))),
    stopping=messages(generation_pb2.Stopping, max_tokens=st.sampled_from((1, 3, 2**31 - 1))),
)

SCHEMAS = st.recursive(
    st.sampled_from(({}, True, False, {"type": "integer"}, {"enum": ["a", 1]}, {"minLength": 2, "maxLength": 5})),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner, "minItems": st.sampled_from((0, 3, 10**9))}),
        st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(st.text(max_size=3), inner)}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, max_size=3)}),
    ),
    max_leaves=6,
)
PATTERNS = ("[a-c]+", "(a|b){2,4}", "\\d{3}", ".*", "x?", "[", "a**", "(?=a)", "\\p{L}{1,500}", "[^\\s\\S]")
CONSTRAINED = st.one_of(
    messages(generation_pb2.GenerateRequest, json_schema=SCHEMAS.map(json.dumps)),
    messages(generation_pb2.GenerateRequest, regex=st.one_of(st.sampled_from(PATTERNS), st.text(max_size=20))),
    messages(generation_pb2.GenerateRequest, choices=st.lists(st.text(max_size=5), max_size=4).map(choices)),
    messages(generation_pb2.GenerateRequest, grammar=st.sampled_from(('start: "a" | "b"', "start: /[a-z]+/", "x: y"))),
)


@pytest.mark.usefixtures("alive", "neighbour")
@ANYTHING
@given(st.one_of(WHOLE, KNOBS, CONSTRAINED.map(asked)), st.booleans())
def test_any_generation(stack: Stack, message: generation_pb2.GenerateRequest, streamed: bool) -> None:
    message.scheduling.queue_timeout.seconds = max(-5, min(5, message.scheduling.queue_timeout.seconds))
    outcome = stream(stack, message, 10) if streamed else unary(stack, message, 10)
    assert outcome.code.name not in UNTYPED, f"{outcome.code.name}: {outcome.message}"
    if outcome.code.name == "INVALID_ARGUMENT":
        assert outcome.fields, outcome.message
    if outcome.ok:
        assert outcome.finish


@pytest.mark.usefixtures("alive")
def test_a_text_too_large_for_any_context_is_refused_by_its_field(stack: Stack) -> None:
    for outcome, field in (
        (unary(stack, request("a" * 10_000_000, model="chatty")), "input"),
        (stream(stack, request("a" * 10_000_000, model="chatty")), "request.input"),
    ):
        assert (outcome.code.name, outcome.reason, outcome.fields) == ("INVALID_ARGUMENT", "PROMPT_TOO_LARGE", [field])
        assert "10000000 bytes" in outcome.message


def code_of(call: Callable[..., Any], message: Any) -> str:
    began = time.monotonic()
    try:
        call(message, timeout=10)
    except grpc.RpcError as error:
        return str(error.code().name)
    finally:
        assert time.monotonic() - began < 5
    return "OK"


METHODS = (
    "coldplate.v1.GenerationService/Generate",
    "coldplate.v1.GenerationService/StreamGenerate",
    "coldplate.v1.TokenService/Tokenize",
    "coldplate.v1.DeviceService/WatchStatus",
    "grpc.health.v1.Health/Check",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
BROKEN = (b"\xff" * 10, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\xc3\x28", b"\x0b" * 1000)


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("data", BROKEN)
def test_bytes_that_are_no_message(stack: Stack, method: str, data: bytes) -> None:
    call = stack.channel.stream_stream(f"/{method}")
    with pytest.raises(grpc.RpcError) as ended:
        list(call(iter([data]), timeout=10))
    assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Traceback" not in stack.log()


HEAVY: dict[str, Callable[[], dict[str, Any]]] = {
    "messages": lambda: {"conversation": {"messages": [{}] * 1_500_000}},
    "parts": lambda: {"conversation": {"messages": [{"role": "user", "parts": [{}] * 1_500_000}]}},
    "logit_bias": lambda: {"text": "hello", "sampling": {"logit_bias": dict.fromkeys(range(200_000), 1.0)}},
    "choices": lambda: {"text": "hello", "choices": {"texts": [""] * 1_500_000}},
    "token_ids": lambda: {"token_ids": {"ids": [1] * 3_000_000}},
}


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("name", list(HEAVY))
def test_millions_of_small_parts_hold_up_nobody(stack: Stack, name: str) -> None:
    message = generation_pb2.GenerateRequest(model="chatty", **HEAVY[name]())
    neighbour = StreamCall(stack, request(PROMPT, model="alphabet", max_tokens=200), timeout_s=None).read_deltas(1)
    neighbour.start_reading()
    outcome = unary(stack, message)
    assert outcome.code.name == "INVALID_ARGUMENT"
    assert outcome.fields
    assert outcome.elapsed_s < 2
    times = neighbour.result().delta_times
    assert neighbour.outcome.text == alphabet_answer(len(PROMPT), 200)
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 1


def caller(stack: Stack, message: Message) -> Callable[..., Any]:
    """The method that takes ``message``."""
    name = type(message).__name__.removesuffix("Request")
    stubs = (
        admin_pb2_grpc.AdminServiceStub(stack.control),
        control_pb2_grpc.ControlServiceStub(stack.control),
        device_pb2_grpc.DeviceServiceStub(stack.channel),
        token_pb2_grpc.TokenServiceStub(stack.channel),
    )
    method: Callable[..., Any] = next(getattr(stub, name) for stub in stubs if hasattr(stub, name))
    return method


@pytest.mark.usefixtures("alive", "neighbour")
@ANYTHING
@given(
    st.one_of(
        messages(token_pb2.TokenizeRequest, model=st.just("chatty")),
        messages(token_pb2.DetokenizeRequest, model=st.just("chatty")),
        messages(token_pb2.CountTokensRequest, model=st.just("chatty")),
        messages(token_pb2.RenderConversationRequest, model=st.just("chatty")),
        messages(device_pb2.GetStatusRequest),
    )
)
def test_any_call_of_the_other_public_services(stack: Stack, message: Message) -> None:
    assert code_of(caller(stack, message), message) not in UNTYPED


LIMITS = messages(device_pb2.DeviceLimits)


@pytest.mark.usefixtures("alive", "neighbour")
@ANYTHING
@given(
    st.one_of(
        messages(admin_pb2.SetOperatorLimitsRequest, limits=LIMITS),
        messages(
            control_pb2.ApplyLimitsRequest,
            governor=st.just("g"),
            ttl=st.just(Duration(seconds=1)),
            devices=st.lists(messages(control_pb2.DeviceDirective, device=st.just("cpu"), limits=LIMITS), max_size=2),
        ),
        messages(control_pb2.ApplyLimitsRequest),
        messages(admin_pb2.AbortRequest, all=st.just(False)),
        messages(admin_pb2.SetLogLevelRequest),
    )
)
def test_any_call_of_the_control_services(stack: Stack, message: Message) -> None:
    try:
        assert code_of(caller(stack, message), message) not in UNTYPED
    finally:
        admin_pb2_grpc.AdminServiceStub(stack.control).SetOperatorLimits(
            admin_pb2.SetOperatorLimitsRequest(), timeout=5
        )
