"""The HTTP endpoint that Prometheus scrapes, in a thread of its own."""

from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server


class MetricsEndpoint:
    """Serves ``registry`` on HOST:PORT, or nowhere when the address is empty."""

    def __init__(self, registry: CollectorRegistry, address: str) -> None:
        self._registry = registry
        self._address = address
        self._running: tuple[WSGIServer, Thread] | None = None

    def start(self) -> None:
        """Raises OSError when the address is taken."""
        if self._address:
            host, _, port = self._address.rpartition(":")
            self._running = start_http_server(int(port), host, self._registry)

    def stop(self) -> None:
        if self._running is not None:
            server, thread = self._running
            server.shutdown()
            server.server_close()
            thread.join()
            self._running = None
