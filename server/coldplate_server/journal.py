"""The journal: for each live stream all that is needed to continue it on another engine.

A token is journaled before any of it is written to a caller. Text is not kept here: it is made from ids when the caller
reads, so a slow reader costs ids.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from coldplate_server.errors import DuplicateRequestId, RequestError
from coldplate_server.request import FallbackPolicy, Priority, SamplingParams


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """How the engine ended a stream by itself. ``stop_token_id`` is set when a stop token did."""

    cause: str  # "stop_token", "max_tokens", "context_full"
    stop_token_id: int | None = None


@dataclass(slots=True)
class StreamRecord:
    """One stream. Times are monotonic seconds; ``deadline`` None is no deadline.

    ``emitted`` holds every token so far, those of an earlier call (``resumed`` of them) included. ``sampling.seed`` is
    set. ``context_limited`` tells that max_tokens is what the context had left rather than what was asked for.
    """

    number: int
    request_id: str
    model: str
    prompt_ids: list[int]
    sampling: SamplingParams
    max_tokens: int
    context_limited: bool
    stop_token_ids: frozenset[int]
    priority: Priority
    fallback: FallbackPolicy
    arrived: float
    deadline: float | None = None
    emitted: list[int] = field(default_factory=list)
    resumed: int = 0
    attempts: int = 0
    worker: str | None = None
    device: str | None = None
    cached_tokens: int = 0
    submitted: float | None = None
    admitted: bool = False
    first_token: float | None = None
    last_token: float | None = None
    paced_s: float = 0.0
    end: EngineEnd | None = None
    error: RequestError | None = None
    wake: Callable[[], None] | None = None

    @property
    def kv_tokens(self) -> int:
        """Cache the stream may come to need, in tokens."""
        return len(self.prompt_ids) + self.max_tokens

    @property
    def admission_tokens(self) -> int:
        """Cache the stream begins with, in tokens: what exists and the next one."""
        return len(self.prompt_ids) + len(self.emitted) + 1

    @property
    def delivered(self) -> int:
        """New tokens of this call."""
        return len(self.emitted) - self.resumed

    @property
    def over(self) -> bool:
        return self.end is not None or self.error is not None

    def append(self, token_id: int, now: float) -> None:
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
        self.emitted.append(token_id)

    def finish(self, end: EngineEnd) -> None:
        if not self.over:
            self.end = end

    def fail(self, error: RequestError) -> None:
        if not self.over:
            self.error = error

    def notify(self) -> None:
        """Tell the reader that something changed."""
        if self.wake is not None:
            self.wake()


class Journal:
    """All live streams."""

    def __init__(self) -> None:
        self._by_id: dict[str, StreamRecord] = {}
        self._last_number = 0

    def next_number(self) -> int:
        """A number no stream of this server has had."""
        self._last_number += 1
        return self._last_number

    def check_free(self, request_id: str) -> None:
        """Raise DuplicateRequestId when a live stream has this id."""
        if request_id in self._by_id:
            raise DuplicateRequestId(
                "request_id: another live request has this id; wait for it to end or choose another"
            )

    def open(self, record: StreamRecord) -> None:
        """Take a stream in. Raises DuplicateRequestId."""
        self.check_free(record.request_id)
        self._by_id[record.request_id] = record

    def close(self, record: StreamRecord) -> None:
        """Let a stream go; its id may belong to another by now."""
        if self._by_id.get(record.request_id) is record:
            del self._by_id[record.request_id]

    def get(self, request_id: str) -> StreamRecord | None:
        return self._by_id.get(request_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[StreamRecord]:
        return iter(list(self._by_id.values()))
