"""transformers' own model classes, a static batch of equally long prompts."""

import time
from typing import Any

import torch
import transformers
from protocol import Facts, Figures, Job, Prompts, Stopwatch, serve


class TransformersDriver:
    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job["threads"])
        self._dtype = job["dtype"]
        loader: Any = transformers.AutoModelForCausalLM
        self._model = loader.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"]), local_files_only=True)
        self._model.eval()
        self._prompts: Prompts = []
        self._cache: Any = None

    def facts(self) -> Facts:
        return {"version": transformers.__version__, "precision": self._dtype}

    @torch.inference_mode()
    def decode(self, prompts: Prompts, new_tokens: int) -> Figures:
        watch = Stopwatch(len(prompts))
        tokens = self._prompt(prompts)
        for step in range(new_tokens):
            if step:
                tokens = self._forward(tokens)
            now = time.perf_counter()
            for stream in range(len(prompts)):
                watch.took(stream, 1, now)
            watch.step_done(now)
        return watch.result()

    @torch.inference_mode()
    def prefill(self, prompt: list[int]) -> Figures:
        self._prompts = []
        start = time.perf_counter()
        self._prompt([prompt])
        return {"seconds": time.perf_counter() - start}

    def _prompt(self, prompts: Prompts) -> torch.Tensor:
        ids = torch.tensor(prompts)
        if prompts == self._prompts:
            self._cache.crop(ids.shape[1] - 1)
            return self._forward(ids[:, -1:])
        self._prompts, self._cache = prompts, transformers.DynamicCache(config=self._model.config)
        for rows in range(0, ids.shape[1], 512):
            tokens = self._forward(ids[:, rows : rows + 512])
        return tokens

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        out = self._model(ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        best: torch.Tensor = out.logits[:, -1].float().argmax(dim=1, keepdim=True)
        return best

    def close(self) -> None:
        pass


if __name__ == "__main__":
    serve(TransformersDriver)
