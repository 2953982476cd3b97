"""llama.cpp through llama-cpp-python's low-level interface, all streams in one batch a step."""

import time

import llama_cpp
import numpy as np
from protocol import Facts, Figures, Job, Prompts, Stopwatch, serve

N_BATCH = 2048


class LlamaCppDriver:
    def __init__(self, job: Job) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(job["gguf"].encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {job['gguf']}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = job["context"] * job["streams"]
        params.n_seq_max = job["streams"]
        params.n_batch = N_BATCH
        params.n_threads = params.n_threads_batch = job["threads"]
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit("llama.cpp cannot make a context")
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocabulary_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(N_BATCH, 0, 1)
        self._cached: list[list[int]] = [[] for _ in range(job["streams"])]
        self._quantisation = job["gguf_type"]

    def facts(self) -> Facts:
        return {"version": llama_cpp.__version__, "precision": self._quantisation}

    def decode(self, prompts: Prompts, new_tokens: int) -> Figures:
        watch = Stopwatch(len(prompts))
        last = [self._prompt(stream, prompt) for stream, prompt in enumerate(prompts)]
        now = time.perf_counter()
        for stream in range(len(prompts)):
            watch.took(stream, 1, now)
        watch.step_done(now)
        position = [len(prompt) for prompt in prompts]
        for _ in range(new_tokens - 1):
            last = self._run([(token, position[stream], stream, True) for stream, token in enumerate(last)])
            now = time.perf_counter()
            for stream in range(len(prompts)):
                position[stream] += 1
                watch.took(stream, 1, now)
            watch.step_done(now)
        return watch.result()

    def prefill(self, prompt: list[int]) -> Figures:
        self._cached[0] = []
        start = time.perf_counter()
        self._prompt(0, prompt)
        return {"seconds": time.perf_counter() - start}

    def _prompt(self, stream: int, prompt: list[int]) -> int:
        """Put a prompt into a sequence, all but its last token from the cache when it was the last one there."""
        kept = len(prompt) - 1 if self._cached[stream] == prompt else 0
        llama_cpp.llama_memory_seq_rm(self._memory, stream, kept, -1)
        self._cached[stream] = prompt
        token = 0
        for first in range(kept, len(prompt), N_BATCH):
            rows = range(first, min(len(prompt), first + N_BATCH))
            found = self._run([(prompt[at], at, stream, at == len(prompt) - 1) for at in rows])
            token = found[0] if found else 0
        return token

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """One step over (token, position, sequence, wants logits); the likeliest token behind each that wants it."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for at, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, position, 1
            batch.seq_id[at][0], batch.logits[at] = sequence, wanted
        if (code := llama_cpp.llama_decode(self._context, batch)) != 0:
            raise SystemExit(f"llama_decode failed with {code}")
        found = []
        for at, (_, _, _, wanted) in enumerate(rows):
            if wanted:
                logits = llama_cpp.llama_get_logits_ith(self._context, at)
                found.append(int(np.ctypeslib.as_array(logits, (self._vocabulary_size,)).argmax()))
        return found

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)


if __name__ == "__main__":
    serve(LlamaCppDriver)
