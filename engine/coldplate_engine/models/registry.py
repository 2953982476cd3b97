"""The decoders this engine has, by the name ``config.json`` gives them."""

from coldplate_engine.models.decoder import DecoderFamily
from coldplate_engine.models.families import DENSE_FAMILIES
from coldplate_engine.models.gpt2 import Gpt2
from coldplate_engine.runner import ModelError
from coldplate_engine.weights.config import ModelConfig

FAMILIES: dict[str, DecoderFamily] = {"GPT2LMHeadModel": Gpt2, **DENSE_FAMILIES}


def family_of(config: ModelConfig) -> DecoderFamily:
    """The family that runs this checkpoint. Raises ``ModelError`` for architectures it cannot run.

    Code shipped with a checkpoint (``auto_map``) is never run: the architecture must be one of ours.
    """
    family = FAMILIES.get(config.architecture)
    if family is None:
        remote = "; it asks for its own code (auto_map, trust_remote_code), which is never run"
        raise ModelError(
            f"{config.path}: architecture {config.architecture} is not supported (supported: {', '.join(FAMILIES)})"
            f"{remote if 'auto_map' in config.fields else ''}"
        )
    return family
