"""Loading any decoder-only architecture of transformers. No code of a checkpoint is ever run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from coldplate_engine.models.decoder import DecoderShape
from coldplate_engine.models.generic.checks import check_answers, check_architecture, check_positions
from coldplate_engine.models.generic.decoder import GenericDecoder, replace_linears
from coldplate_engine.models.generic.interface import NAME, Unsupported, register
from coldplate_engine.models.layers import MakeLinear
from coldplate_engine.runner import ModelError
from coldplate_engine.weights.config import ModelConfig
from coldplate_engine.weights.reader import CheckpointReader

_PROBE_TOKENS = 15


class GenericFamily:
    """See ``DecoderFamily``. Of a model that takes more than text, the language model alone."""

    def describe(self, config: ModelConfig) -> DecoderShape:
        """Layers and heads as the config says; ``GenericDecoder`` knows them from the model itself."""
        theirs, model_class = _text_model(config)
        with _named(config):
            check_architecture(theirs, model_class)
        positions = getattr(theirs, "max_position_embeddings", None)
        if not isinstance(positions, int):
            raise config.error("max_position_embeddings", "must be there to bound a stream", positions)
        heads = theirs.num_attention_heads
        return DecoderShape(
            layers=theirs.num_hidden_layers,
            kv_heads=getattr(theirs, "num_key_value_heads", None) or heads,
            head_dim=getattr(theirs, "head_dim", None) or theirs.hidden_size // heads,
            vocabulary=theirs.vocab_size,
            max_positions=positions,
        )

    def __call__(
        self, config: ModelConfig, weights: CheckpointReader, linear: MakeLinear, max_positions: int
    ) -> GenericDecoder:
        if weights.quantization:
            raise ModelError(
                f"{config.path}: {config.architecture} runs through transformers' modules, which take plain weights "
                f"only, not {weights.quantization}"
            )
        theirs, model_class = _text_model(config)
        with _named(config):
            check_positions(theirs, max_positions)
            model = _load(theirs, model_class, weights)
            prompts = _prompts(theirs.vocab_size)
            reference = _reference(model, prompts)
            head = model.get_output_embeddings()
            tied = head is not None and head.weight is model.get_input_embeddings().weight
            replace_linears(model, linear, head if tied else None)
            decoder = GenericDecoder(model, theirs.vocab_size, max_positions)
            check_answers(decoder, reference, prompts, weights.dtype)
        return decoder


def _text_model(config: ModelConfig) -> tuple[Any, Any]:
    """transformers' config and class of the language model."""
    kind = config.fields.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise config.error("model_type", "is not known", kind)
    try:
        whole = CONFIG_MAPPING[kind].from_dict(config.fields)
    except Exception as error:  # whatever a config class raises about its own values
        raise ModelError(f"{config.path}: {_one_line(error)}") from None
    text = whole.get_text_config()
    if text is whole:
        return whole, getattr(transformers, config.architecture)
    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{config.path}: {config.architecture} has no language model that can be run alone")
    text.tie_word_embeddings = whole.tie_word_embeddings
    return text, MODEL_FOR_CAUSAL_LM_MAPPING[type(text)]


@contextmanager
def _named(config: ModelConfig) -> Iterator[None]:
    try:
        yield
    except Unsupported as reason:
        raise ModelError(f"{config.path}: {config.architecture} {reason}, so it is not supported") from None
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:  # out of its own modules
        raise ModelError(f"{config.path}: {config.architecture} does not run here: {_one_line(error)}") from None


def _load(theirs: Any, model_class: Any, weights: CheckpointReader) -> Any:
    """The model with our tensors in it: made without memory, so that every weight exists once."""
    register()
    theirs_log: Any = transformers.utils.logging
    theirs_log.set_verbosity_error()  # what it would say is in the loading report, which is looked at below
    theirs_log.disable_progress_bar()
    try:
        model, info = model_class.from_pretrained(
            None,
            config=theirs,
            state_dict={ours: weights.raw(name) for name, ours in _text_names(weights).items()},
            dtype=weights.dtype,
            attn_implementation=NAME,
            output_loading_info=True,
        )
    except ModelError:
        raise
    except Exception as error:  # transformers reports shapes and conversions by many classes
        reason = f"{model_class.__name__} cannot be loaded: {_one_line(error)}"
        raise ModelError(f"{weights.directory}: {reason}") from None
    if info["missing_keys"]:
        raise ModelError(f"{weights.directory}: tensor {min(info['missing_keys'])} is missing")
    foreign = [name for name in info["unexpected_keys"] if name.endswith("weight")]
    if foreign:
        raise ModelError(f"{weights.directory}: tensor {min(foreign)} has no place in {model_class.__name__}")
    weights.parameter_count = model.num_parameters()
    return model


def _text_names(weights: CheckpointReader) -> dict[str, str]:
    """Stored names and what the language model alone calls them: beside other towers it is ``language_model``."""
    names = list(weights.names())
    part = "language_model."
    if not any(part in name for name in names):
        return {name: name for name in names}
    return {name: name.replace(part, "", 1) for name in names if part in name or name.startswith("lm_head.")}


def _prompts(vocabulary: int) -> list[list[int]]:
    return [[(stream * 17 + 37 * at) % vocabulary for at in range(_PROBE_TOKENS)] for stream in (1, 2)]


def _reference(model: Any, prompts: list[list[int]]) -> list[Tensor]:
    """What the model answers with transformers' own attention."""
    model.set_attn_implementation("eager")
    logits = [model(input_ids=torch.tensor([ids]), use_cache=False).logits[0] for ids in prompts]
    model.set_attn_implementation(NAME)
    return logits


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
