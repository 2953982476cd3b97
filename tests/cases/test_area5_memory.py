"""Area 5: out of memory and memory use."""

import resource
import threading
from collections.abc import Iterator

import pytest

from support import case_models
from support.case_models import alphabet_answer, page
from support.client import Alive, Outcome, StreamCall, request, unary
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
    assert never.elapsed_s < 1
    for _ in range(5):
        assert unary(small_cache, request("hello", max_tokens=4)).text == alphabet_answer(5, 4)


@pytest.mark.usefixtures("small_alive")
def test_m2_two_that_fit_alone_both_finish(small_cache: Stack) -> None:
    calls = [StreamCall(small_cache, request("x" * 16, max_tokens=40)).start_reading() for _ in range(2)]
    for call in calls:
        assert call.result(20).text == alphabet_answer(16, 40)


@pytest.mark.usefixtures("small_alive")
def test_m4_eight_that_fit_alone_all_finish(small_cache: Stack) -> None:
    calls = [StreamCall(small_cache, request("x" * 16, max_tokens=47)).start_reading() for _ in range(8)]
    for call in calls:
        assert call.result(20).text == alphabet_answer(16, 47)


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
    assert many.code.name in ("INVALID_ARGUMENT", "UNIMPLEMENTED")
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
