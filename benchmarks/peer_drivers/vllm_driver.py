"""vLLM, its engine stepped in this process. Run with the interpreter of vLLM's environment."""

import os
import time

from protocol import Facts, Figures, Job, Prompts, Stopwatch, serve

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "3")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


class VllmDriver:
    def __init__(self, job: Job) -> None:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{job['threads'] - 1}")
        import vllm

        self._vllm = vllm
        self._dtype = job["dtype"]
        self._engine = vllm.LLM(
            model=job["model"],
            dtype=job["dtype"],
            max_model_len=job["context"],
            max_num_seqs=job["streams"],
            skip_tokenizer_init=True,
            enable_prefix_caching=True,
            disable_log_stats=True,
        ).llm_engine
        self._number = 0

    def facts(self) -> Facts:
        return {"version": self._vllm.__version__, "precision": self._dtype}

    def decode(self, prompts: Prompts, new_tokens: int) -> Figures:
        sampling = self._vllm.SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        watch = Stopwatch(len(prompts))
        for prompt in prompts:
            self._number += 1
            self._engine.add_request(str(self._number), {"prompt_token_ids": prompt}, sampling)
        had: dict[str, int] = {}
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter()
            for output in outputs:
                total = len(output.outputs[0].token_ids)
                watch.took(output.request_id, total - had.get(output.request_id, 0), now)
                had[output.request_id] = total
            watch.step_done(now)
        return watch.result()

    def prefill(self, prompt: list[int]) -> Figures:
        return {"seconds": self.decode([prompt], 1)["first_token_s"]}

    def close(self) -> None:
        pass


if __name__ == "__main__":
    serve(VllmDriver)
