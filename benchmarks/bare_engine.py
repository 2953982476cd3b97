"""The engine loop alone, in a process of its own: no service, but the same steps and the same detokenising.

Run as a child by the benchmarks: reads one JSON line per round, ``{"prompts": [[ids]…], "max_tokens": N}``, from
standard input and answers each with ``{"seconds": S, "tokens": N}``.
"""

import argparse
import json
import sys
import threading
import time
from pathlib import Path

from coldplate.logs import configure_logs
from coldplate_engine.engine import Engine
from coldplate_engine.inbox import CommandQueue
from coldplate_engine.messages import Connect, Shutdown, StepOutput, Submission
from coldplate_engine.settings import EngineSettings
from coldplate_engine.threads import let_waiting_threads_sleep
from coldplate_server.text.tokenizer import Tokenizer


class Round:
    """Counts one batch of streams to its end, making text as tokens come."""

    def __init__(self, tokenizer: Tokenizer, streams: list[int]) -> None:
        self.tokens = 0
        self.done = threading.Event()
        self._detokenizers = {stream: tokenizer.detokenizer() for stream in streams}
        self._left = len(streams)

    def take(self, output: StepOutput) -> None:
        for stream, token in zip(output.streams, output.token_ids, strict=True):
            self._detokenizers[stream].push((token,))
        self.tokens += len(output.streams)
        self._left -= len(output.finished)
        if self._left <= 0:
            self.done.set()


class BareEngine:
    """An engine in a thread, driven through its own inbox."""

    def __init__(self, settings: EngineSettings) -> None:
        self._tokenizer = Tokenizer.load(settings.model)
        self._inbox = CommandQueue()
        self._next_stream = 0
        self._round: Round | None = None
        ready = threading.Event()
        engine = Engine(settings, self._inbox, lambda phase, share: None, lambda facts: ready.set())
        self._thread = threading.Thread(target=engine.run)
        self._thread.start()
        ready.wait()
        self._inbox.put(Connect(self._emit))

    def run(self, prompts: list[list[int]], max_tokens: int) -> dict[str, float]:
        """Greedy, no stop tokens; seconds from the first submission to the last token."""
        streams = [self._next_stream + index for index in range(len(prompts))]
        self._next_stream += len(prompts)
        self._round = Round(self._tokenizer, streams)
        start = time.perf_counter()
        for stream, prompt in zip(streams, prompts, strict=True):
            self._inbox.put(Submission(stream, tuple(prompt), max_tokens))
        self._round.done.wait()
        return {"seconds": time.perf_counter() - start, "tokens": self._round.tokens}

    def close(self) -> None:
        self._inbox.put(Shutdown(now=True))
        self._thread.join()

    def _emit(self, output: StepOutput) -> None:
        if self._round is not None:
            self._round.take(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    args = parser.parse_args()
    let_waiting_threads_sleep()
    settings = {"model": args.model, "max_num_seqs": args.max_num_seqs, "listen": "unix:unused"}
    configure_logs("bare-engine", "warning")
    engine = BareEngine(EngineSettings.model_validate(settings))
    print(json.dumps({"ready": True}), flush=True)
    try:
        for line in sys.stdin:
            print(json.dumps(engine.run(**json.loads(line))), flush=True)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
