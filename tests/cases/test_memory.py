"""What the server's process keeps: little at rest, nothing of requests that are over."""

import pytest

from support import case_models
from support.client import Alive, StreamCall, gauges, request, unary
from support.metrics import total
from support.processes import Stack, until


def test_at_rest_the_server_is_small(demo_service: Stack) -> None:
    assert unary(demo_service, request("hello", max_tokens=4)).ok
    until("nothing running", lambda: gauges(demo_service).running == 0)
    assert demo_service.rss_bytes() <= 200e6


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_m10_finished_requests_leave_nothing_behind() -> None:
    """2,000 requests of 4 tokens, a quarter cancelled: under 1 kB each after the first 500."""
    with Stack({"alphabet": case_models.alphabet()}, engine_args=["kv-cache-tokens=4096"]) as stack:
        alive = Alive(stack, "alphabet")
        for number in range(2000):
            if number == 500:
                settled = stack.rss_bytes()
            if number % 4:
                assert unary(stack, request("hello", max_tokens=4)).ok
            else:
                call = StreamCall(stack, request("hello", max_tokens=200)).read_deltas(1)
                call.cancel()
                call.read_all()
        growth = (stack.rss_bytes() - settled) / 1500
        print(f"{growth:.0f} bytes a request")
        assert growth < 1000
        alive.check()
        until("no request in the journal", lambda: total(stack, "coldplate_num_requests_tracked") == 0, 3)
