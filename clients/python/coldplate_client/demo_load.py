"""Callers for the demo: as many at a time as wanted, each asking again when it is answered."""

import threading
from types import TracebackType
from typing import Self

from coldplate_client.client import Client
from coldplate_client.errors import ColdplateError

_TOKENS = 24  # short, because a batch cap waits for streams to end
_PROMPT = "Once upon a time"


class Load:
    """A context manager; ``keep`` sets how many callers there are, leaving it ends them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def keep(self, streams: int) -> None:
        """Have ``streams`` callers from now on, at least as many as before."""
        while len(self._threads) < streams:
            thread = threading.Thread(target=self._ask, daemon=True)
            thread.start()
            self._threads.append(thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(10)

    def _ask(self) -> None:
        while not self._over.is_set():
            try:
                with self._client.stream(_PROMPT, max_tokens=_TOKENS, ignore_end_of_text=True) as stream:
                    for _ in stream:
                        if self._over.is_set():
                            break
            except ColdplateError:
                self._over.wait(0.5)  # refused by a limit: as a caller would, try again a little later
