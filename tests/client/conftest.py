from collections.abc import Iterator

import pytest

from client.fake_server import FakeServer
from coldplate_client import Client


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.target) as connected:
        yield connected
