"""Servers shared by the case tests: one with many models, one whose every step is slow, one with a tiny cache."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coldplate_engine.importing.demo_model import ensure_demo_model
from support import case_models
from support.client import Alive
from support.processes import Stack
from support.vllm import WORKERS, slow_steps


@pytest.fixture(scope="session")
def service() -> Iterator[Stack]:
    models = {
        "book": case_models.book(),
        "undecodable": case_models.undecodable(),
        "chatty": case_models.chatty(),
        "strict": case_models.strict(),
        "starting": case_models.starting(),
        "spaced": case_models.spaced(),
        "thinker": case_models.thinker(),
    }
    with Stack(models, engine_args=["kv-cache-tokens=8192"]) as stack:
        yield stack


@pytest.fixture(scope="session")
def service_alive(service: Stack) -> Alive:
    return Alive(service, "book")


@pytest.fixture
def alive(service_alive: Alive) -> Iterator[Alive]:
    """Asked after every test of ``service``."""
    yield service_alive
    service_alive.check()


@pytest.fixture(scope="session", params=WORKERS)
def slow(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Two slots, 32 places in the queue, steps of at least 20 ms."""
    options = slow_steps(request.param, ["kv-cache-tokens=1024", "max-num-seqs=2"], ["max-queued-requests=32"])
    with Stack({"alphabet": case_models.alphabet()}, **options) as stack:
        yield stack


@pytest.fixture(scope="session")
def slow_start(slow: Stack) -> Alive:
    return Alive(slow, "alphabet")


@pytest.fixture
def slow_alive(slow_start: Alive) -> Iterator[Alive]:
    """Asked after every test of ``slow``."""
    yield slow_start
    slow_start.check()


@pytest.fixture(scope="session")
def demo_model() -> Path:
    return ensure_demo_model(lambda phase, share: None)


@pytest.fixture(scope="session")
def demo_service(demo_model: Path) -> Iterator[Stack]:
    """The demo model in float32."""
    with Stack({"demo": demo_model}, engine_args=["dtype=float32", "kv-cache-tokens=16384"]) as stack:
        yield stack
