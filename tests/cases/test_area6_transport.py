"""Area 6: health, reflection, grpcurl, taken ports."""

import time

import pytest
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coldplate.v1 import generation_pb2
from support import case_models
from support.case_models import page
from support.client import Alive, chat, request, unary
from support.processes import Stack, free_port, run


def test_g2_not_serving_before_the_model_is_loaded() -> None:
    """Health from the first moment on: never SERVING before it answers, then SERVING for good."""
    stack = Stack({"alphabet": case_models.alphabet()}, engine_args=["kv-cache-tokens=256"])
    seen: list[str] = []
    try:
        deadline = time.monotonic() + 60
        while seen[-3:] != ["SERVING"] * 3:
            assert time.monotonic() < deadline
            answer = unary(stack, request("hello", max_tokens=1), timeout_s=2) if "NOT_SERVING" in seen[-1:] else None
            seen.append(stack.health())
            if answer is not None and not answer.ok:
                assert answer.code.name == "UNAVAILABLE"
                assert answer.elapsed_s < 1
            time.sleep(0.1)
        changes = [now for before, now in zip(["", *seen], seen, strict=False) if now != before]
        assert changes[-1] == "SERVING"
        assert changes.count("SERVING") == 1
        assert set(changes) <= {"UNAVAILABLE", "DEADLINE_EXCEEDED", "NOT_SERVING", "SERVING"}
        assert "NOT_SERVING" in changes
        assert unary(stack, request("hello", max_tokens=1)).ok
    finally:
        stack.kill()


def test_g8_large_numbers_and_finish_reasons_survive_json(service: Stack, alive: Alive) -> None:
    message = json_format.ParseDict(
        {"text": page("italian").prompt, "model": "book", "sampling": {"seed": "9007199254740993", "temperature": 0}},
        generation_pb2.GenerateRequest(),
    )
    outcome = unary(service, message)
    assert outcome.response is not None
    shown = json_format.MessageToDict(outcome.response)
    assert shown["seed"] == "9007199254740993"
    assert shown["choices"][0]["finishReason"] == "FINISH_REASON_END_OF_TEXT"
    assert shown["usage"]["promptTokens"] == page("italian").prompt_tokens


@pytest.mark.parametrize("where", ["stop", "role", "model", "request_id"])
def test_g10_a_long_bad_value_is_shortened(service: Stack, alive: Alive, where: str) -> None:
    long_value = "z" * 20_000
    wrong = {
        "stop": request("hi", model="book", stop_sequences=[long_value, ""]),
        "role": request(chat((long_value, "hi")), model="chatty"),
        "model": request("hi", model=long_value),
        "request_id": request("hi", model="book", request_id=long_value),
    }[where]
    outcome = unary(service, wrong)
    assert outcome.code.name == ("NOT_FOUND" if where == "model" else "INVALID_ARGUMENT")
    assert len(outcome.message.encode()) <= 1024
    details = outcome.trailers.get("grpc-status-details-bin", b"")
    assert len(details) < 4096


@pytest.mark.parametrize("which", ["listen", "metrics-listen"])
def test_g11_a_second_server_on_a_taken_port(service: Stack, alive: Alive, which: str) -> None:
    taken = service.address if which == "listen" else service.metrics_address
    other = {"listen": f"127.0.0.1:{free_port()}", "metrics-listen": f"127.0.0.1:{free_port()}", which: taken}
    start = time.monotonic()
    done = run(
        "coldplate-server",
        *(f"--{name}={address}" for name, address in other.items()),
        f"--model=book={case_models.book().path}",
        f"--control-socket={service.folder}/other.sock",
    )
    assert done.returncode == 2
    assert taken.rpartition(":")[2] in done.stderr.splitlines()[-1]
    assert time.monotonic() - start < 5


def test_g11_a_second_server_on_a_taken_control_socket(service: Stack, alive: Alive) -> None:
    done = run(
        "coldplate-server",
        f"--listen=127.0.0.1:{free_port()}",
        f"--metrics-listen=127.0.0.1:{free_port()}",
        f"--model=book={case_models.book().path}",
        f"--control-socket={service.control_socket}",
    )
    assert done.returncode == 2
    assert str(service.control_socket) in done.stderr.splitlines()[-1]


def test_health_of_services_models_and_devices(service: Stack, alive: Alive) -> None:
    stub = health_pb2_grpc.HealthStub(service.channel)
    for name in ("", "coldplate.v1.GenerationService", "coldplate.v1.TokenService", "model/book", "device/cpu"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=2)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, name
    assert service.health("model/nobody") == "NOT_FOUND"
