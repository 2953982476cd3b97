"""The supported model families: how each one's GGUF metadata and tensors become a Hugging Face checkpoint."""

from collections.abc import Callable

from coldplate_engine.importing.errors import ImportFailed
from coldplate_engine.importing.gguf_checkpoint import Checkpoint
from coldplate_engine.importing.gguf_dense import llama, qwen2, qwen3
from coldplate_engine.importing.gguf_file import GgufFile
from coldplate_engine.importing.gguf_gpt2 import gpt2

_FAMILIES: dict[str, Callable[[GgufFile], Checkpoint]] = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3, "gpt2": gpt2}


def read_checkpoint(file: GgufFile) -> Checkpoint:
    """What the file holds, complete and with every shape checked.

    Raises ImportFailed naming the architecture, the metadata key or the tensor that is unusable.
    """
    architecture = file.require("general.architecture", str)
    family = _FAMILIES.get(architecture)
    if family is None:
        raise ImportFailed(
            file.path,
            f"has the unsupported architecture {architecture[:40]!r}: supported are {', '.join(sorted(_FAMILIES))}",
        )
    return family(file)
