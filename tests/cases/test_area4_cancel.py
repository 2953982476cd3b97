"""Area 4: cancel, deadlines, disconnects, slow readers, shutdown."""

import random
import signal
import time

import pytest

from coldplate.v1 import admin_pb2, admin_pb2_grpc
from support import case_models, checkpoints
from support.case_models import alphabet_answer
from support.client import Alive, StreamCall, gauges, request, stream, unary
from support.metrics import generated_tokens
from support.processes import Stack, until
from support.tokenizers import BYTES_VOCABULARY, TokenizerSpec
from support.vllm import WORKERS, slow_steps

PROMPT = "x" * 10


def idle(stack: Stack) -> bool:
    now = gauges(stack)
    return now.running == now.pending == now.queued == now.kv_tokens_used == 0


@pytest.mark.usefixtures("slow_alive")
def test_c1_a_cancelled_stream_stops_the_engine(slow: Stack) -> None:
    call = StreamCall(slow, request(PROMPT, max_tokens=200)).read_deltas(1)
    call.cancel()
    cancelled_at = time.monotonic()
    until("an idle engine", lambda: idle(slow), 1.0)
    made = generated_tokens(slow)
    time_in_steps = (time.monotonic() - cancelled_at) / 0.02
    assert call.read_all().code.name == "CANCELLED"
    unary(slow, request(PROMPT, max_tokens=2))
    assert generated_tokens(slow) == made + 2
    assert time_in_steps < 50


@pytest.mark.usefixtures("slow_alive")
def test_c1_tokens_after_a_cancel_are_at_most_two_steps(slow: Stack) -> None:
    before = generated_tokens(slow)
    call = StreamCall(slow, request(PROMPT, max_tokens=200)).read_deltas(5)
    call.cancel()
    until("an idle engine", lambda: idle(slow), 1.0)
    received = call.read_all().token_count
    assert generated_tokens(slow) - before <= received + 3  # one in flight to the client, two steps


@pytest.mark.usefixtures("slow_alive")
def test_c3_the_callers_deadline_ends_the_work(slow: Stack) -> None:
    outcome = stream(slow, request(PROMPT, max_tokens=200), timeout_s=0.3)
    assert outcome.code.name == "DEADLINE_EXCEEDED"
    assert 0.1 <= outcome.elapsed_s <= 0.5
    assert outcome.text == alphabet_answer(len(PROMPT), outcome.token_count)
    until("an idle engine", lambda: idle(slow), 1.0)


def test_c5_cancels_that_race_with_the_finish(service: Stack, alive: Alive) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        call = StreamCall(service, request("x" * 40, model="book", max_tokens=rng.randint(1, 3))).start_reading()
        pause_until = time.monotonic() + rng.uniform(0, 0.03)
        while time.monotonic() < pause_until and call.outcome.completed is None:
            time.sleep(0.001)
        call.cancel()
        call.cancel()
        assert call.result().code.name in ("OK", "CANCELLED")


@pytest.mark.usefixtures("slow_alive")
def test_c7_a_cancel_before_the_engine_knows_the_request(slow: Stack) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    before = generated_tokens(slow)
    calls = []
    for _ in range(200):
        call = StreamCall(slow, request(PROMPT, max_tokens=200))
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, 0.002))
        call.cancel()
        calls.append(call)
    until("an idle engine", lambda: idle(slow), 2.0)
    assert {call.read_all().code.name for call in calls} == {"CANCELLED"}
    assert generated_tokens(slow) - before <= 200


@pytest.mark.usefixtures("slow_alive")
@pytest.mark.parametrize("by_id", [True, False])
def test_c9_a_stream_ended_by_the_server_ends_for_the_client(slow: Stack, by_id: bool) -> None:
    call = StreamCall(slow, request(PROMPT, max_tokens=200, request_id="to end"), timeout_s=None).read_deltas(1)
    call.start_reading()
    named = admin_pb2.AbortRequest(request_ids=["to end", "nobody"]) if by_id else admin_pb2.AbortRequest(all=True)
    answer = admin_pb2_grpc.AdminServiceStub(slow.control).Abort(named, timeout=5)
    aborted_at = time.monotonic()
    outcome = call.result(5)
    assert list(answer.aborted) == ["to end"]
    assert list(answer.unknown) == (["nobody"] if by_id else [])
    assert outcome.code.name == "ABORTED"
    assert outcome.end_time - aborted_at <= 1
    assert outcome.completed is None


@pytest.mark.usefixtures("slow_alive")
def test_c12_two_live_requests_cannot_share_an_id(slow: Stack) -> None:
    first = StreamCall(slow, request(PROMPT, max_tokens=30, request_id="x")).read_deltas(1)
    second = unary(slow, request("x" * 20, max_tokens=30, request_id="x"))
    assert second.code.name == "ALREADY_EXISTS"
    assert first.read_all().text == alphabet_answer(len(PROMPT), 30)
    third = unary(slow, request("x" * 20, max_tokens=30, request_id="x"))
    assert third.text == alphabet_answer(20, 30)


@pytest.mark.parametrize("kind", WORKERS)
def test_c10_sigterm_lets_open_streams_finish(kind: str) -> None:
    options = slow_steps(kind, ["kv-cache-tokens=1024"], ["drain-grace-s=30"])
    with Stack({"alphabet": case_models.alphabet()}, **options) as stack:
        open_stream = StreamCall(stack, request(PROMPT, max_tokens=200)).read_deltas(1).start_reading()
        stack.signal(signal.SIGTERM)
        signalled_at = time.monotonic()
        until("health not SERVING", lambda: stack.health() != "SERVING", 1.0)
        late = unary(stack, request(PROMPT, max_tokens=4), timeout_s=5)
        assert late.code.name == "UNAVAILABLE"
        assert late.elapsed_s < 1
        assert stack.exit_code is None
        outcome = open_stream.result(30)
        assert outcome.ok, outcome.message
        assert outcome.text == alphabet_answer(len(PROMPT), 200)
        assert outcome.end_time - signalled_at > 1, "the stream was over too soon to tell"
        assert stack.wait(10) == 0
        assert time.monotonic() - outcome.end_time < 5


@pytest.mark.slow
def test_c8_readers_that_stop_reading_cost_no_memory() -> None:
    """Ten clients take one delta of an answer of 20 MB and then nothing; one reads on beside them."""
    long_token = "y" * 10_000
    spec = TokenizerSpec(extra=(long_token,))
    token_id = BYTES_VOCABULARY
    model = checkpoints.cycle([token_id], context=2048, tokenizer=spec, vocabulary=token_id + 1)
    wanted = request("hello", max_tokens=2000, special_tokens=True)
    with Stack({"loud": model}, engine_args=["kv-cache-tokens=32768", "max-model-len=2048"]) as stack:
        alone = stream(stack, wanted)
        assert len(alone.text) == 2000 * 10_000
        before = stack.rss_bytes()
        stalled = [StreamCall(stack, wanted, timeout_s=None).read_deltas(1) for _ in range(10)]
        beside = StreamCall(stack, wanted).start_reading()
        peak = 0

        def read_on() -> bool:
            nonlocal peak
            peak = max(peak, stack.rss_bytes())
            return beside.outcome.end_time > 0

        until("the normal reader is done", read_on, 60, 0.05)
        assert beside.result().text == alone.text
        quiet_until = time.monotonic() + 30
        until("30 s of silence", lambda: read_on() and time.monotonic() > quiet_until, 40, 0.2)
        assert peak - before < 60e6
        fastest = min(stream(stack, wanted).elapsed_s for _ in range(2))
        assert fastest <= alone.elapsed_s / 0.8
        for call in stalled:
            call.cancel()
        until("an idle engine", lambda: idle(stack), 5.0)
