"""A peer that answers at once with made-up figures; ``fails`` in its job makes it die at that operation."""

import sys

from protocol import Facts, Figures, Job, Prompts, serve


class FakeDriver:
    def __init__(self, job: Job) -> None:
        self._rate, self._fails = job["rate"], job.get("fails")
        self._may_run("start")

    def facts(self) -> Facts:
        print("noise that a library prints")
        return {"version": "1", "precision": "fake"}

    def decode(self, prompts: Prompts, new_tokens: int) -> Figures:
        self._may_run("decode")
        return {"tokens": len(prompts) * new_tokens, "seconds": len(prompts) * new_tokens / self._rate}

    def prefill(self, prompt: list[int]) -> Figures:
        self._may_run("prefill")
        return {"seconds": len(prompt) / self._rate}

    def close(self) -> None:
        pass

    def _may_run(self, operation: str) -> None:
        if self._fails == operation:
            sys.exit(f"no {operation} today")


if __name__ == "__main__":
    serve(FakeDriver)
