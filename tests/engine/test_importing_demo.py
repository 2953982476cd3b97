"""The real demo model answers sensibly after its import."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from coldplate_engine.importing.demo_model import ensure_demo_model
from coldplate_engine.importing.errors import ImportFailed


@pytest.mark.slow
def test_demo_model_knows_paris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDPLATE_CACHE", str(tmp_path))
    try:
        directory = ensure_demo_model(lambda _phase, _share: None)
    except ImportFailed as error:
        pytest.skip(str(error))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model: Any = AutoModelForCausalLM.from_pretrained(directory)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    for prompt, answer in (
        ("The capital of France is", "The capital of France is Paris."),
        (tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False), "Paris.<|im_end|>"),
    ):
        inputs = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            ids = model.generate(**inputs, do_sample=False, max_new_tokens=12)[0]
        assert answer in tokenizer.decode(ids)
