"""What transformers says to the same prompts, greedily: the reference for exactness. Run as a program of its own.

``python -P reference.py MODEL_DIR DTYPE TOKENS < prompts.json > token_ids.json``; it never stops at end of text.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea, there lived",
    "1, 1, 2, 3, 5, 8, 13,",
    "Water boils at",
    "To be, or not to be,",
    "Q: What is the largest planet?\nA:",
    "import numpy as np\n\ndef softmax(x):\n",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. This sentence",
    "中文的意思是",
    "List three colours:\n1.",
    "The chip was hot, so the governor",
    "Dear Sir or Madam,\n\nI am writing to",
    "SELECT name, age FROM people WHERE",
    "A",
    "<html>\n<head>\n<title>",
    "The recipe needs two eggs, a cup of flour and " * 4,
    "Roses are red,\nViolets are blue,\n",
    "x" * 40,
    "In 1969, the first people walked on the Moon. " * 12 + "Then",
)


def generate(model_dir: Path, prompts: Sequence[str], tokens: int, dtype: str = "float32") -> list[list[int]]:
    """Greedy token ids for each prompt, by transformers' ``generate`` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", __file__, str(model_dir), dtype, str(tokens)],
        input=json.dumps(list(prompts)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode != 0:
        raise RuntimeError(f"the reference failed:\n{done.stderr}")
    answers: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens are equal before the first that is not."""
    return next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def _main() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # several threads wait for each other badly on a busy machine
    model_dir, dtype, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    answers = []
    for prompt in json.load(sys.stdin):
        inputs = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            made = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
        answers.append(made[0, inputs["input_ids"].shape[1] :].tolist())
    print(json.dumps(answers))


if __name__ == "__main__":
    _main()
