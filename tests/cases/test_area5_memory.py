"""Area 5: out of memory and memory use."""

import resource
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from support import case_models
from support.case_models import alphabet_answer, page
from support.client import Alive, Outcome, StreamCall, gauges, request, unary
from support.metrics import total
from support.processes import Stack
from support.tokenizers import POISON_ID


@pytest.fixture(scope="module")
def small_cache() -> Iterator[Stack]:
    """A cache of 64 tokens under a context of 256."""
    with Stack({"alphabet": case_models.alphabet()}, engine_args=["kv-cache-tokens=64"]) as stack:
        yield stack


@pytest.fixture(scope="module")
def small_start(small_cache: Stack) -> Alive:
    return Alive(small_cache, "alphabet")


@pytest.fixture
def small_alive(small_start: Alive) -> Iterator[None]:
    yield
    small_start.check()


@pytest.mark.usefixtures("small_alive")
def test_m1_a_request_that_can_never_fit_blocks_nobody(small_cache: Stack) -> None:
    never = unary(small_cache, request("x" * 100, max_tokens=4))
    assert never.code.name in ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT")
    assert "104" in never.message
    assert "64" in never.message
    assert never.elapsed_s < 1
    for _ in range(5):
        assert unary(small_cache, request("hello", max_tokens=4)).text == alphabet_answer(5, 4)


@pytest.mark.usefixtures("small_alive")
def test_m2_two_that_fit_alone_both_finish(small_cache: Stack) -> None:
    calls = [StreamCall(small_cache, request("x" * 16, max_tokens=40)).start_reading() for _ in range(2)]
    for call in calls:
        assert call.result(20).text == alphabet_answer(16, 40)


@pytest.mark.usefixtures("small_alive")
def test_m4_eight_that_fit_alone_all_finish_with_few_preemptions(small_cache: Stack) -> None:
    before = total(small_cache, "coldplate_num_preemptions_total")
    calls = [StreamCall(small_cache, request("x" * 16, max_tokens=47)).start_reading() for _ in range(8)]
    outcomes = [call.result(40) for call in calls]
    assert all(outcome.text == alphabet_answer(16, 47) for outcome in outcomes)
    times = sorted(time for outcome in outcomes for time in (outcome.start_time, *outcome.delta_times))
    assert max(later - earlier for earlier, later in pairwise(times)) < 5, "some token in every 5 s"
    assert total(small_cache, "coldplate_num_preemptions_total") - before <= 64


def test_a_streams_text_is_the_same_through_preemptions_and_host_memory() -> None:
    """Prompts of three blocks that begin alike, in a cache of eight blocks with room for more in host memory."""
    flags = ["kv-cache-tokens=128", "kv-offload-gib=0.01", "max-num-seqs=8"]
    with Stack({"alphabet": case_models.alphabet()}, engine_args=flags) as stack:
        prompts = ["x" * 40 + letter * 8 for letter in "abcdef"]
        for _ in range(2):
            calls = [StreamCall(stack, request(prompt, max_tokens=60)).start_reading() for prompt in prompts]
            assert all(call.result(40).text == alphabet_answer(48, 60) for call in calls)
        assert total(stack, "coldplate_num_preemptions_total") > 0
        assert total(stack, "coldplate_prefix_cache_hits_total") > 0
        again = unary(stack, request("x" * 40 + "a" * 8, max_tokens=4))
        assert 32 <= again.usage.cached_tokens <= 47
        assert gauges(stack).kv_tokens_used == 0


def test_m9_what_a_failed_step_had_allocated_is_given_back() -> None:
    """Five times 200 MB are allocated in a step that then runs out of memory; each step is made good."""
    plan = "+".join(f"alloc-oom=200MB@{step}" for step in (7, 12, 17, 22, 27))
    with Stack(
        {"alphabet": case_models.alphabet()},
        workers=[f"alphabet@fault:{plan},cpu"],
        engine_args=["kv-cache-tokens=1024", "test-faults"],
    ) as stack:
        assert unary(stack, request("hello", max_tokens=4)).text == alphabet_answer(5, 4)
        worker = next(psutil.Process(pid) for pid in stack.worker_pids() if pid != stack.pid)
        before = worker.memory_info().rss
        for _ in range(8):
            assert unary(stack, request("hello", max_tokens=4)).text == alphabet_answer(5, 4)
            assert worker.memory_info().rss - before < 20e6
        status = Path(f"/proc/{worker.pid}/status").read_text()
        peak_kb = int(status.partition("VmHWM:")[2].split()[0])
        assert peak_kb * 1024 - before > 180e6, "it had been allocated"


def test_m7_one_bad_request_fails_alone(service: Stack, alive: Alive) -> None:
    names = ("after two hundred", "numbers", "letters")
    neighbours = [
        StreamCall(service, request(page(name).prompt, model="book", max_tokens=len(page(name).token_ids)))
        for name in names
    ]
    poisoned = StreamCall(service, request([POISON_ID], model="book", max_tokens=50)).start_reading()
    for call in neighbours:
        call.start_reading()
    unknown_token = unary(service, request([9_999_999], model="book", max_tokens=4))
    assert poisoned.result().code.name == "INTERNAL"
    assert unknown_token.code.name == "INVALID_ARGUMENT"
    for name, call in zip(names, neighbours, strict=True):
        assert call.result().text == bytes(page(name).token_ids).decode()


def test_m12_one_number_allocates_nothing(service: Stack, alive: Alive) -> None:
    before = service.rss_bytes()
    many = unary(service, request("hello", model="book", n=5_000_000, max_tokens=4))
    assert many.code.name == "INVALID_ARGUMENT"
    huge = unary(service, request(page("italian").prompt, model="book", max_tokens=2_147_483_647))
    assert huge.text == "UNO DUE TRE"
    assert many.elapsed_s < 1
    assert huge.elapsed_s < 1
    assert service.rss_bytes() - before < 20e6


@pytest.mark.usefixtures("slow_alive")
def test_m13_the_queue_is_bounded(slow: Stack) -> None:
    """Two slots and 32 places: of 500 calls at once 34 are served, the rest refused at once with a hint."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert min(soft, hard) > 600
    before = slow.rss_bytes()
    outcomes: list[Outcome] = []
    barrier = threading.Barrier(500)

    def ask() -> None:
        barrier.wait()
        outcomes.append(unary(slow, request("hello", max_tokens=8), timeout_s=60))

    threads = [threading.Thread(target=ask) for _ in range(500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served = [outcome for outcome in outcomes if outcome.ok]
    refused = [outcome for outcome in outcomes if not outcome.ok]
    assert all(outcome.text == alphabet_answer(5, 8) for outcome in served)
    assert {outcome.code.name for outcome in refused} == {"RESOURCE_EXHAUSTED"}
    assert {outcome.reason for outcome in refused} == {"QUEUE_FULL"}
    assert all(outcome.retry_after_s for outcome in refused)
    assert all(int(outcome.trailers["grpc-retry-pushback-ms"]) > 0 for outcome in refused)
    assert 34 <= len(served) <= 50, len(served)  # some end while the last of 500 are still being sent
    assert slow.rss_bytes() - before < 20e6
