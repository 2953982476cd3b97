"""The journal: for each live stream all that is needed to continue it on another engine.

A token is journaled before any of it is written to a caller. Text is not kept here: it is made from ids when the caller
reads, so a slow reader costs ids.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coldplate_server.errors import DuplicateRequestId, RequestError
from coldplate_server.request import Constraint, FallbackPolicy, Priority, SamplingParams
from coldplate_server.result import TokenLogprob
from coldplate_server.text.reasoning import Thinking


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """How the engine ended a stream by itself. ``stop_token_id`` is set when a stop token did."""

    cause: str  # "stop_token", "max_tokens", "context_full"
    stop_token_id: int | None = None


@dataclass(slots=True)
class StreamRecord:
    """One stream: one choice of one request. Times are monotonic seconds; ``deadline`` None is no deadline.

    ``emitted`` holds every token so far, those of an earlier call (``resumed`` of them) included; ``logprobs`` those of
    the new tokens, where ``logprobs_wanted`` says so; ``prompt_logprobs`` those of the prompt from its second token on.
    ``sampling.seed`` is set. ``context_limited`` tells that max_tokens is what the context had left rather than what
    was asked for. ``needs`` are the features a worker must have, each with the field that asks for it.
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
    min_tokens: int = 0
    logprobs_wanted: int | None = None
    prompt_logprobs_wanted: int | None = None
    constraint: Constraint | None = None
    thinking: Thinking | None = None
    cache_salt: str = ""
    tenant: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)
    sibling_of: "StreamRecord | None" = None
    emitted: list[int] = field(default_factory=list)
    resumed: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
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

    @property
    def begun(self) -> bool:
        """Whether an engine has taken it up, or it had come to its end in an earlier call."""
        return self.admitted or self.delivered > 0 or self.end is not None

    def append(self, token_id: int, now: float) -> None:
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
        self.emitted.append(token_id)

    def add_prompt_logprobs(self, first: int, logprobs: Sequence[TokenLogprob]) -> None:
        """Those of the prompt from position ``first`` on; what is known already, after a recompute, is passed over.

        Raises ValueError where some would be missing before them.
        """
        known = 1 + len(self.prompt_logprobs)
        if first > known:
            raise ValueError(f"log-probabilities of the prompt from position {first} on, expected {known}")
        self.prompt_logprobs += logprobs[known - first :]

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
    """All live streams. Those of one request share its id."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[StreamRecord]] = {}
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

    def open(self, records: Sequence[StreamRecord]) -> None:
        """Take the streams of one request in. Raises DuplicateRequestId."""
        self.check_free(records[0].request_id)
        self._by_id[records[0].request_id] = list(records)

    def close(self, record: StreamRecord) -> None:
        """Let a stream go; its id may belong to another request by now."""
        streams = self._by_id.get(record.request_id, [])
        streams[:] = [other for other in streams if other is not record]
        if not streams:
            self._by_id.pop(record.request_id, None)

    def get(self, request_id: str) -> list[StreamRecord]:
        """The live streams of a request; none when it is not known."""
        return list(self._by_id.get(request_id, ()))

    @property
    def request_ids(self) -> list[str]:
        return list(self._by_id)

    def __len__(self) -> int:
        """Live streams."""
        return sum(map(len, self._by_id.values()))

    def __iter__(self) -> Iterator[StreamRecord]:
        return iter([record for streams in self._by_id.values() for record in streams])
