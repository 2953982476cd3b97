from collections.abc import Iterator
from pathlib import Path

import pytest

from coldplate_governor.explain.encoder import TickEncoder
from governor.law_run import law_run
from support import checkpoints
from support.processes import Stack
from support.tokenizers import CHATML, TokenizerSpec


@pytest.fixture(scope="session")
def documented() -> Iterator[Stack]:
    """A service as the documentation has it running: one model with a chat template, on the CPU."""
    model = checkpoints.random_llama(seed=1, context=1024, tokenizer=TokenizerSpec(chat_template=CHATML))
    with Stack({"demo": model}, engine_args=["kv-cache-tokens=8192"]) as stack:
        yield stack


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with a recording of the governor called `governor`, of fifteen minutes."""
    folder = tmp_path_factory.mktemp("state")
    encoder = TickEncoder(epoch=1)
    (folder / "governor").mkdir()
    (folder / "governor" / "governor.jsonl").write_bytes(
        encoder.start() + b"".join(encoder.tick(tick) for tick in law_run(900))
    )
    return folder
