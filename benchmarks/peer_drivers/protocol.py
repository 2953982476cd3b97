"""How a driver is asked: a JSON line in, a JSON line out. Standard library only: it runs in every peer's environment.

A driver is one engine with one model in a process of its own. It says ``{"ready": true, …facts}`` once and then answers

- ``{"op": "decode", "prompts": [[ids] …], "new_tokens": N}`` with ``{"tokens": T, "seconds": S, "first_token_s": F}``:
  T tokens came in the S seconds after every stream had its first one, which took F seconds from the start;
- ``{"op": "prefill", "prompt": [ids]}`` with ``{"seconds": S}``, from the request to its first token.

Prompts asked for twice may come from a prefix cache: what is measured of them starts behind the first token.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

Job = dict[str, Any]  # what to load and how: see peers.py
Facts = dict[str, Any]
Figures = dict[str, float]
Prompts = list[list[int]]  # token ids, one prompt a stream


class Driver(Protocol):
    def facts(self) -> Facts:
        """Version, precision and whatever else the report should name."""
        ...

    def decode(self, prompts: Prompts, new_tokens: int) -> Figures: ...

    def prefill(self, prompt: list[int]) -> Figures: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Stopwatch:
    """Counts tokens behind the moment when all ``streams`` have their first."""

    streams: int
    start: float = field(default_factory=time.perf_counter)
    _seen: set[object] = field(default_factory=set)
    _all_at: float = 0.0
    _last: float = 0.0
    _tokens: int = 0

    def took(self, stream: object, tokens: int, now: float) -> None:
        """``tokens`` new tokens of ``stream`` were there at ``now``."""
        if self._all_at:
            self._tokens += tokens
            self._last = now
        self._seen.add(stream)

    def step_done(self, now: float) -> None:
        """Everything that came with one step has been counted."""
        if not self._all_at and len(self._seen) == self.streams:
            self._all_at = self._last = now

    def result(self) -> Figures:
        return {
            "tokens": self._tokens,
            "seconds": self._last - self._all_at,
            "first_token_s": self._all_at - self.start,
        }


@contextlib.contextmanager
def own_stdout() -> Iterator[TextIO]:
    """Keep standard output for the answers: whatever a library prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield answers
    finally:
        answers.close()


def serve(make: Callable[[Job], Driver]) -> None:
    """Run a driver made by ``make(job)``; the job is the JSON object given as the only argument."""
    with own_stdout() as answers:
        driver = make(json.loads(sys.argv[1]))
        print(json.dumps({"ready": True, **driver.facts()}), file=answers)
        try:
            for line in sys.stdin:
                request = json.loads(line)
                operation = request.pop("op")
                print(json.dumps(getattr(driver, operation)(**request)), file=answers)
        finally:
            driver.close()
