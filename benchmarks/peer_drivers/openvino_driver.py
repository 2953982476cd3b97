"""OpenVINO GenAI's continuous batching pipeline, straight from a GGUF file."""

import time
from importlib.metadata import version

import numpy as np
import openvino
import openvino_genai
from protocol import Facts, Figures, Job, Prompts, Stopwatch, serve


class OpenVinoDriver:
    def __init__(self, job: Job) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 3
        scheduler.max_num_seqs = job["streams"]
        scheduler.enable_prefix_caching = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            job["gguf"], scheduler, "CPU", {"INFERENCE_NUM_THREADS": job["threads"]}
        )
        self._quantisation = job["gguf_type"]
        self._number = 0

    def facts(self) -> Facts:
        return {"version": version("openvino-genai"), "precision": self._quantisation}

    def decode(self, prompts: Prompts, new_tokens: int) -> Figures:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        watch = Stopwatch(len(prompts))
        handles = {}
        for prompt in prompts:
            self._number += 1
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles[self._number] = self._pipeline.add_request(self._number, ids, config)
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter()
            for number, handle in handles.items():
                if handle.can_read():
                    for output in handle.read().values():
                        watch.took(number, len(output.generated_ids), now)
            watch.step_done(now)
        return watch.result()

    def prefill(self, prompt: list[int]) -> Figures:
        return {"seconds": self.decode([prompt], 1)["first_token_s"]}

    def close(self) -> None:
        pass


if __name__ == "__main__":
    serve(OpenVinoDriver)
