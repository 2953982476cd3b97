"""A server with canned answers: every reply a test wants, without an engine.

The prompt chooses the behaviour: ``say TEXT`` answers TEXT one character a token, ``move TEXT`` also moves to another
device, ``hang`` sends one delta and waits, ``fail CODE`` ends with that status and details, ``cut CODE`` does so after
two deltas, ``half`` ends OK without its last event, ``think TEXT`` thinks "hm" before TEXT. As many choices as ``n``
asks for say the same; with ``logprobs`` each token has one, and with ``prompt_logprobs`` a prompt has one.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from coldplate.limits_proto import limits_from_proto
from coldplate.transport import server_options
from coldplate.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    device_pb2,
    device_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    token_pb2,
    token_pb2_grpc,
)

REASON = "81.4 degC against a target of 85, trend +0.18 degC/s: duty 0.60"
Response = generation_pb2.StreamGenerateResponse


@dataclass
class Seen:
    """What reached the server."""

    requests: list[generation_pb2.GenerateRequest] = field(default_factory=list)
    time_remaining_s: list[float | None] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    attempts: int = 0
    devices: list[str] = field(default_factory=list)


class FakeServer:
    """Serves every public service, and Admin, on one loopback port; ``with FakeServer() as server: server.target``."""

    def __init__(self, target: str = "127.0.0.1:0") -> None:
        self.seen = Seen()
        self.status = canned_status()
        self.refuse_first = 0  # calls answered UNAVAILABLE, with a pushback, before the first that succeeds
        self._server = grpc.server(ThreadPoolExecutor(16), options=server_options())
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(_Generation(self), self._server)
        token_pb2_grpc.add_TokenServiceServicer_to_server(_Token(), self._server)
        model_pb2_grpc.add_ModelServiceServicer_to_server(_Model(), self._server)
        device_pb2_grpc.add_DeviceServiceServicer_to_server(_Device(self), self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(_Admin(self), self._server)
        self.health = health.HealthServicer()
        self.health.set("coldplate.v1.GenerationService", HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        port = self._server.add_insecure_port(target)
        self.target = target if target.startswith("unix:") else f"127.0.0.1:{port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()


def canned_status() -> device_pb2.ServiceStatus:
    return device_pb2.ServiceStatus(
        devices=[
            device_pb2.DeviceStatus(
                device="npu:0",
                worker="npu-0",
                model="demo",
                state=device_pb2.DEVICE_STATE_THROTTLED,
                detail="paced to 60 %",
                simulated=True,
                readings=device_pb2.Readings(temperature_celsius=81.4, sources=["board"]),
                limits=device_pb2.DeviceLimits(duty=0.6, max_batch=8),
                bindings=[
                    device_pb2.LimitBinding(limit="duty", source=device_pb2.LIMIT_SOURCE_GOVERNOR),
                    device_pb2.LimitBinding(limit="max_batch", source=device_pb2.LIMIT_SOURCE_OPERATOR),
                ],
                governor_mode="THROTTLED",
                reasons=[device_pb2.Reason(code="TEMPERATURE_NEAR_TARGET", text=REASON)],
                running=3,
                tokens_per_second=42.5,
            ),
            device_pb2.DeviceStatus(device="cpu", worker="cpu", state=device_pb2.DEVICE_STATE_SERVING),
        ],
        governor=device_pb2.GovernorStatus(
            state=device_pb2.GOVERNOR_STATE_GOVERNED, name="governor", lease_left=duration_pb2.Duration(seconds=4)
        ),
        queued=2,
        running=3,
    )


class _Generation(generation_pb2_grpc.GenerationServiceServicer):
    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def Generate(self, request: generation_pb2.GenerateRequest, context: Any) -> generation_pb2.GenerateResponse:  # noqa: N802
        prompt = self._arrive(request, context)
        verb, _, rest = prompt.partition(" ")
        if verb == "fail":
            _fail(context, rest)
        if verb == "hang":
            self._hang()
        return generation_pb2.GenerateResponse(
            request_id=request.request_id or "made-up",
            model="demo",
            model_revision="r1",
            device="cpu",
            seed=7,
            choices=[_choice(index, request, rest) for index in range(max(1, request.sampling.n))],
            prompt_logprobs=_prompt_logprobs(request),
            usage=generation_pb2.Usage(prompt_tokens=3, completion_tokens=len(rest)),
            timings=_timings(),
        )

    def StreamGenerate(self, stream: generation_pb2.StreamGenerateRequest, context: Any) -> Iterator[Response]:  # noqa: N802
        request = stream.request
        prompt = self._arrive(request, context)
        verb, _, rest = prompt.partition(" ")
        if verb == "fail":
            _fail(context, rest)
        yield Response(
            started=generation_pb2.Started(
                request_id=request.request_id or "made-up", model="demo", device="npu:0", seed=7, prompt_tokens=3
            )
        )
        yield Response(progress=generation_pb2.Progress(phase=generation_pb2.PHASE_QUEUED, queue_position=1))
        if verb == "hang":
            yield _delta(0, "x")
            self._hang()
        if prompt_logprobs := _prompt_logprobs(request):
            yield Response(prompt_logprobs=generation_pb2.PromptLogprobs(first_token_index=1, logprobs=prompt_logprobs))
        if verb == "think":
            yield Response(delta=generation_pb2.Delta(reasoning_text="hm"))
        text = rest if verb in {"say", "move", "think"} else "ab"
        choices = max(1, request.sampling.n)
        for at, character in enumerate(text):
            for index in range(choices):
                yield _delta(at, character, index, logprobs=request.reporting.HasField("logprobs"))
        if verb == "cut":
            _fail(context, rest)
        if verb == "half":
            return
        if verb == "move":
            yield Response(
                migrated=generation_pb2.Migrated(
                    from_device="npu:0",
                    to_device="cpu",
                    level=generation_pb2.RESUME_LEVEL_CONTINUOUS,
                    at_token_index=len(text),
                )
            )
        yield Response()  # an event of a newer contract
        for index in range(choices):
            yield Response(
                choice_finished=generation_pb2.ChoiceFinished(
                    choice_index=index, reason=generation_pb2.FINISH_REASON_STOP_SEQUENCE, stop_sequence="."
                )
            )
        yield Response(
            completed=generation_pb2.Completed(
                usage=generation_pb2.Usage(prompt_tokens=3, completion_tokens=len(text)), timings=_timings()
            )
        )

    def _arrive(self, request: generation_pb2.GenerateRequest, context: Any) -> str:
        seen = self._server.seen
        seen.attempts += 1
        # Not later: a call that is cancelled between two messages never comes back into its handler.
        if not context.add_callback(seen.ended.set):
            seen.ended.set()
        seen.requests.append(request)
        remaining = context.time_remaining()
        seen.time_remaining_s.append(remaining if remaining is not None and remaining < 1e6 else None)
        if seen.attempts <= self._server.refuse_first:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", "20"),))
            context.abort(grpc.StatusCode.UNAVAILABLE, "loading")
        if request.WhichOneof("input") == "conversation":
            return request.conversation.messages[-1].text
        return request.text

    def _hang(self) -> None:
        self._server.seen.ended.wait(30)


class _Token(token_pb2_grpc.TokenServiceServicer):
    def Tokenize(self, request: token_pb2.TokenizeRequest, context: Any) -> token_pb2.TokenizeResponse:  # noqa: N802
        return token_pb2.TokenizeResponse(token_ids=request.text.encode())

    def Detokenize(self, request: token_pb2.DetokenizeRequest, context: Any) -> token_pb2.DetokenizeResponse:  # noqa: N802
        return token_pb2.DetokenizeResponse(text=bytes(request.token_ids).decode())

    def CountTokens(self, request: token_pb2.CountTokensRequest, context: Any) -> token_pb2.CountTokensResponse:  # noqa: N802
        return token_pb2.CountTokensResponse(tokens=len(request.text), context_left=100)


class _Model(model_pb2_grpc.ModelServiceServicer):
    def ListModels(self, request: model_pb2.ListModelsRequest, context: Any) -> model_pb2.ListModelsResponse:  # noqa: N802
        model = model_pb2.Model(
            name="demo",
            state=model_pb2.MODEL_STATE_AVAILABLE,
            architecture="LlamaForCausalLM",
            parameter_count=134_515_008,
            max_context_tokens=2048,
            replicas=[
                model_pb2.ModelReplica(
                    worker="cpu",
                    devices=["cpu"],
                    dtype="float32",
                    features=["logprobs", "guided"],
                    engine_settings={"block_size": "16"},
                    weight_bytes=500 * 2**20,
                    kv_cache_bytes=64 * 2**20,
                )
            ],
        )
        return model_pb2.ListModelsResponse(models=[model])


class _Device(device_pb2_grpc.DeviceServiceServicer):
    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def GetStatus(self, request: device_pb2.GetStatusRequest, context: Any) -> device_pb2.GetStatusResponse:  # noqa: N802
        self._server.seen.devices.append(request.device)
        return device_pb2.GetStatusResponse(status=self._server.status)

    def WatchStatus(  # noqa: N802
        self, request: device_pb2.WatchStatusRequest, context: Any
    ) -> Iterator[device_pb2.WatchStatusResponse]:
        context.add_callback(self._server.seen.ended.set)
        yield device_pb2.WatchStatusResponse(status=self._server.status)
        self._server.status.queued += 1
        yield device_pb2.WatchStatusResponse(status=self._server.status)
        self._server.seen.ended.wait(30)

    def GetLoad(self, request: device_pb2.GetLoadRequest, context: Any) -> device_pb2.GetLoadResponse:  # noqa: N802
        return device_pb2.GetLoadResponse(load=device_pb2.Load(running=3, queued=2, accepting=True))


class _Admin(admin_pb2_grpc.AdminServiceServicer):
    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def SetOperatorLimits(  # noqa: N802
        self, request: admin_pb2.SetOperatorLimitsRequest, context: Any
    ) -> admin_pb2.SetOperatorLimitsResponse:
        try:
            limits = limits_from_proto(request.limits)
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        device = self._server.status.devices[0]
        if request.device not in {"", device.device}:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no device {request.device!r}")
        device.limits.CopyFrom(request.limits)
        del device.bindings[:]
        for name in limits.set_fields():
            device.bindings.add(limit=name, source=device_pb2.LIMIT_SOURCE_OPERATOR)
        return admin_pb2.SetOperatorLimitsResponse(devices=[device])

    def Drain(self, request: admin_pb2.DrainRequest, context: Any) -> admin_pb2.DrainResponse:  # noqa: N802
        self._server.status.draining = True
        return admin_pb2.DrainResponse(running=3)

    def Resume(self, request: admin_pb2.ResumeRequest, context: Any) -> admin_pb2.ResumeResponse:  # noqa: N802
        self._server.status.draining = False
        return admin_pb2.ResumeResponse()

    def Abort(self, request: admin_pb2.AbortRequest, context: Any) -> admin_pb2.AbortResponse:  # noqa: N802
        known = [name for name in request.request_ids if name.startswith("r")]
        return admin_pb2.AbortResponse(aborted=known, unknown=[n for n in request.request_ids if n not in known])


def _delta(at: int, text: str, choice_index: int = 0, *, logprobs: bool = False) -> Response:
    return Response(
        delta=generation_pb2.Delta(
            choice_index=choice_index,
            text=text,
            token_ids=[ord(text)],
            token_count=1,
            first_token_index=at,
            logprobs=[_logprob(ord(text))] if logprobs else [],
        )
    )


def _logprob(token_id: int) -> generation_pb2.TokenLogprob:
    other = generation_pb2.TokenAlternative(token_id=9, logprob=-2)
    return generation_pb2.TokenLogprob(token_id=token_id, logprob=-0.5, alternatives=[other])


def _prompt_logprobs(request: generation_pb2.GenerateRequest) -> list[generation_pb2.TokenLogprob]:
    return [_logprob(5)] if request.reporting.HasField("prompt_logprobs") else []


def _choice(index: int, request: generation_pb2.GenerateRequest, text: str) -> generation_pb2.Choice:
    return generation_pb2.Choice(
        index=index,
        text=text,
        reasoning_text="hm" if request.text.startswith("think") else "",
        token_ids=[ord(character) for character in text],
        logprobs=[_logprob(ord(character)) for character in text if request.reporting.HasField("logprobs")],
        finish_reason=generation_pb2.FINISH_REASON_END_OF_TEXT,
    )


def _timings() -> generation_pb2.Timings:
    return generation_pb2.Timings(
        first_token=duration_pb2.Duration(nanos=250_000_000), total=duration_pb2.Duration(seconds=1, nanos=500_000_000)
    )


def _fail(context: Any, name: str) -> None:
    """End the call with the status ``name`` and every detail the service knows, no retry by the channel."""
    code: grpc.StatusCode = grpc.StatusCode[name]
    details = [
        error_details_pb2.ErrorInfo(
            reason="TEST", domain="coldplate", metadata={"delivered_tokens": "2", "field": "n"}
        ),
        error_details_pb2.BadRequest(
            field_violations=[
                error_details_pb2.BadRequest.FieldViolation(field="sampling.top_p", description="too big")
            ]
        ),
        error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000)),
    ]
    packed = [any_pb2.Any() for _ in details]
    for box, detail in zip(packed, details, strict=True):
        box.Pack(detail)
    status = status_pb2.Status(code=code.value[0], message=f"told {name}", details=packed)
    context.set_trailing_metadata(
        (("grpc-status-details-bin", status.SerializeToString()), ("grpc-retry-pushback-ms", "-1"))
    )
    context.abort(code, f"told {name}")
