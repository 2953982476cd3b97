from collections.abc import Iterator

import pytest

from support import checkpoints
from support.processes import Stack
from support.tokenizers import CHATML, TokenizerSpec


@pytest.fixture(scope="session")
def documented() -> Iterator[Stack]:
    """A service as the documentation has it running: one model with a chat template, on the CPU."""
    model = checkpoints.random_llama(seed=1, context=1024, tokenizer=TokenizerSpec(chat_template=CHATML))
    with Stack({"demo": model}, engine_args=["kv-cache-tokens=8192"]) as stack:
        yield stack
