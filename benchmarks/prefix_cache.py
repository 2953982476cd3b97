"""What the prefix cache and host memory for it are worth, on the bare engine loop.

First: time to first token of a prompt whose first 1,024 tokens were seen before, against one that is new. Second:
prompts of twice the KV cache in all, round after round, with host memory for what the cache has no room for
(--kv-offload-gib) against computing it again. Both sides take turns; medians are compared. The exit code is 1 below the
floors.
"""

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from coldplate.logs import configure_logs
from coldplate_engine.engine import Engine
from coldplate_engine.importing.demo_model import ensure_demo_model
from coldplate_engine.inbox import CommandQueue
from coldplate_engine.messages import Connect, Shutdown, StepOutput, Submission
from coldplate_engine.settings import EngineSettings
from coldplate_engine.threads import let_waiting_threads_sleep
from coldplate_engine.worker_facts import WorkerFacts

TTFT_FLOOR, OFFLOAD_FLOOR = 5.0, 2.0
_OWN, _ANSWER = 16, 16
_PROMPTS = 16  # of the working set, which is twice the cache


class CountingEngine:
    """An engine in a thread; ``run`` tells first-token times, and ``preempted``, ``cached``, ``offloaded`` count on."""

    def __init__(self, model: Path, **settings: object) -> None:
        self.preempted = self.cached = self.offloaded = 0
        self._inbox = CommandQueue()
        self._next = 1
        self._first: dict[int, float] = {}
        self._left: set[int] = set()
        self._done = threading.Event()
        self.facts: WorkerFacts | None = None
        ready = threading.Event()

        def on_ready(facts: WorkerFacts) -> None:
            self.facts = facts
            ready.set()

        values = {"model": model, "listen": "unix:unused", "max_num_seqs": 4, **settings}
        engine = Engine(EngineSettings.model_validate(values), self._inbox, lambda phase, share: None, on_ready)
        self._thread = threading.Thread(target=engine.run, daemon=True)
        self._thread.start()
        while not ready.wait(1):
            if not self._thread.is_alive():
                raise SystemExit("the engine did not start; see its message above")
        self._inbox.put(Connect(self._take))

    def run(self, prompts: list[list[int]], side_by_side: int) -> tuple[list[float], float]:
        """Seconds to the first token of each prompt, and in all; ``side_by_side`` at a time, 16 tokens of answer."""
        first: list[float] = []
        start = time.perf_counter()
        for at in range(0, len(prompts), side_by_side):
            group = prompts[at : at + side_by_side]
            streams = range(self._next, self._next + len(group))
            self._next += len(group)
            self._left = set(streams)
            self._done.clear()
            sent = time.perf_counter()
            for stream, prompt in zip(streams, group, strict=True):
                self._inbox.put(Submission(stream, tuple(prompt), _ANSWER))
            self._done.wait()
            first += [self._first.pop(stream) - sent for stream in streams]
        return first, time.perf_counter() - start

    def close(self) -> None:
        self._inbox.put(Shutdown(now=True))
        self._thread.join()

    def _take(self, output: StepOutput) -> None:
        now = time.perf_counter()
        for stream in output.streams:
            self._first.setdefault(stream, now)
        stats = output.stats
        self.preempted += stats.preempted
        self.cached += stats.cached_tokens
        self.offloaded += stats.offloaded_tokens
        if output.finished:
            self._left -= {item.stream for item in output.finished}
            if not self._left:
                self._done.set()


def prompt_maker(vocabulary: int) -> Callable[[int], list[int]]:
    """Makes lists of random tokens, the same ones in every run."""
    rng = random.Random(1)
    return lambda tokens: [rng.randrange(vocabulary) for _ in range(tokens)]


def measure_first_token(model: Path, rounds: int, shared: int) -> float:
    """How many times sooner the first token comes when the first ``shared`` tokens are in the cache."""
    engine = CountingEngine(model, kv_cache_tokens=4 * (shared + _OWN))
    assert engine.facts is not None
    tokens = prompt_maker(engine.facts.model.vocabulary_size)
    new: list[float] = []
    seen: list[float] = []
    for number in range(rounds + 1):
        beginning = tokens(shared)
        for times in (new, seen):
            first, _ = engine.run([beginning + tokens(_OWN)], 1)
            if number:  # the first round warms up
                times += first
    engine.close()
    ratio = statistics.median(new) / statistics.median(seen)
    print(
        f"first token behind {shared} + {_OWN} tokens: new {_show(new)} ms, {shared} of them seen before "
        f"{_show(seen)} ms: {ratio:.1f} times as fast (floor {TTFT_FLOOR:g})"
    )
    return ratio


def measure_offload(model: Path, rounds: int, shared: int) -> float:
    """Throughput with host memory over throughput with recomputation, at a working set of twice the cache."""
    cache_tokens = _PROMPTS * (shared + _OWN) // 2
    engines = {"recompute": CountingEngine(model, kv_cache_tokens=cache_tokens)}
    facts = engines["recompute"].facts
    assert facts is not None
    gib = 3 * facts.kv_cache_bytes / (1 << 30)
    engines["offload"] = CountingEngine(model, kv_cache_tokens=cache_tokens, kv_offload_gib=gib)
    tokens = prompt_maker(facts.model.vocabulary_size)
    prompts = [tokens(shared) for _ in range(_PROMPTS)]
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        turn = [prompt + tokens(_OWN) for prompt in prompts]
        for name, engine in engines.items():
            _, taken = engine.run(turn, 4)
            if number:  # the first round fills the caches
                seconds[name].append(taken)
    for name, engine in engines.items():
        per_s = [_PROMPTS * (shared + _OWN + _ANSWER) / taken for taken in seconds[name]]
        print(
            f"{name}: {statistics.median(per_s):.0f} tokens/s of prompts and answers ({min(per_s):.0f} to "
            f"{max(per_s):.0f}); {engine.cached} prompt tokens from the cache, {engine.offloaded} of them from host "
            f"memory, {engine.preempted} preemptions"
        )
        engine.close()
    ratio = statistics.median(seconds["recompute"]) / statistics.median(seconds["offload"])
    print(
        f"working set of {_PROMPTS * (shared + _OWN)} tokens, cache of {cache_tokens}, host memory {gib:.2f} GiB: "
        f"offload {ratio:.1f} times as fast (floor {OFFLOAD_FLOOR:g})"
    )
    return ratio


def _show(seconds: list[float]) -> str:
    return f"{1000 * statistics.median(seconds):.1f} ({1000 * min(seconds):.1f} to {1000 * max(seconds):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="default: the demo model")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds of each comparison")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens that prompts share")
    args = parser.parse_args()
    let_waiting_threads_sleep()
    configure_logs("prefix-cache", "warning")
    model = args.model or ensure_demo_model(lambda phase, share: None)
    good = measure_first_token(model, args.rounds, args.tokens) >= TTFT_FLOOR
    good = (measure_offload(model, args.rounds, args.tokens) >= OFFLOAD_FLOOR) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
