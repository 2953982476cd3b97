"""The decoders this engine has, by the name ``config.json`` gives them."""

import importlib.util
import re
from pathlib import Path

from coldplate_engine.models.decoder import DecoderFamily
from coldplate_engine.models.families import DENSE_FAMILIES
from coldplate_engine.models.gpt2 import Gpt2
from coldplate_engine.runner import ModelError
from coldplate_engine.weights.config import ModelConfig

FAMILIES: dict[str, DecoderFamily] = {"GPT2LMHeadModel": Gpt2, **DENSE_FAMILIES}


def family_of(config: ModelConfig) -> DecoderFamily:
    """The family that runs this checkpoint: a decoder of ours, else transformers' modules on our cache.

    Raises ``ModelError`` for architectures it cannot run. Code shipped with a checkpoint (``auto_map``) is never run.
    """
    family = FAMILIES.get(config.architecture)
    if family is not None:
        return family
    if config.architecture in _language_models_of_transformers():
        from coldplate_engine.models.generic.family import GenericFamily  # imports all of transformers

        return GenericFamily()
    remote = "; its own code (auto_map, trust_remote_code) is never run" if "auto_map" in config.fields else ""
    raise ModelError(
        f"{config.path}: architecture {config.architecture} is not supported: it is neither one of "
        f"{', '.join(FAMILIES)} nor a language model of transformers{remote}"
    )


def _language_models_of_transformers() -> set[str]:
    """Their names, read off the table without importing it: that takes seconds, and a refusal should not."""
    package = importlib.util.find_spec("transformers")
    if package is None or package.origin is None:
        return set()
    table = Path(package.origin).parent / "models" / "auto" / "modeling_auto.py"
    listed = re.search(
        r"^MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = .*?^\)", table.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return set(re.findall(r'"(\w+)"\)', listed.group())) if listed else set()
