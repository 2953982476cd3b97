"""Our engine loop alone, stepped in this process through its own inbox."""

import threading
import time
from importlib.metadata import version

from protocol import Facts, Figures, Job, Prompts, Stopwatch, serve

from coldplate.logs import configure_logs
from coldplate_engine.engine import Engine
from coldplate_engine.inbox import CommandQueue
from coldplate_engine.messages import Connect, Shutdown, StepOutput, Submission
from coldplate_engine.settings import EngineSettings
from coldplate_engine.threads import let_waiting_threads_sleep
from coldplate_engine.worker_facts import WorkerFacts


class Round:
    """One batch of streams, timed step by step in the engine's thread."""

    def __init__(self, streams: int) -> None:
        self.watch = Stopwatch(streams)
        self.done = threading.Event()
        self._left = streams

    def take(self, output: StepOutput) -> None:
        now = time.perf_counter()
        for stream in output.streams:
            self.watch.took(stream, 1, now)
        self.watch.step_done(now)
        self._left -= len(output.finished)
        if self._left <= 0:
            self.done.set()


class ColdplateDriver:
    def __init__(self, job: Job) -> None:
        let_waiting_threads_sleep()
        configure_logs("bare-engine", "warning")
        settings = {
            "model": job["model"],
            "listen": "unix:unused",
            "threads": job["threads"],
            "max_num_seqs": job["streams"],
            "max_model_len": job["context"],
            **job["engine"],
        }
        self._inbox = CommandQueue()
        self._facts: WorkerFacts | None = None
        self._failure: BaseException | None = None
        self._round: Round | None = None
        self._number = 0
        self._ready = threading.Event()
        self._engine = Engine(
            EngineSettings.model_validate(settings), self._inbox, lambda phase, share: None, self._loaded
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise SystemExit(f"the engine cannot start: {self._failure}")
        self._inbox.put(Connect(self._emit))

    def facts(self) -> Facts:
        assert self._facts is not None
        model = self._facts.model
        precision = model.quantization or model.dtype
        return {"version": version("coldplate"), "precision": precision, "load_phases": dict(self._facts.load_phases)}

    def decode(self, prompts: Prompts, new_tokens: int) -> Figures:
        streams = range(self._number, self._number + len(prompts))
        self._number += len(prompts)
        self._round = Round(len(prompts))
        for stream, prompt in zip(streams, prompts, strict=True):
            self._inbox.put(Submission(stream, tuple(prompt), new_tokens))
        self._round.done.wait()
        return self._round.watch.result()

    def prefill(self, prompt: list[int]) -> Figures:
        return {"seconds": self.decode([prompt], 1)["first_token_s"]}

    def close(self) -> None:
        self._inbox.put(Shutdown(now=True))
        self._thread.join()

    def _run(self) -> None:
        try:
            self._engine.run()
        except BaseException as error:
            self._failure = error
            self._ready.set()

    def _loaded(self, facts: WorkerFacts) -> None:
        self._facts = facts
        self._ready.set()

    def _emit(self, output: StepOutput) -> None:
        if self._round is not None:
            self._round.take(output)


if __name__ == "__main__":
    serve(ColdplateDriver)
