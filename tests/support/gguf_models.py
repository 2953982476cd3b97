"""A tiny model of transformers to write GGUF files from."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from support import gguf_files

VOCABULARY = len(gguf_files.BYTE_LEVEL_TOKENS)
AutoModel: Any = AutoModelForCausalLM  # its methods are untyped


def tiny_llama(*, tied: bool = True, bias: bool = False) -> Any:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
        attention_bias=bias,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
    )
    model = AutoModel.from_config(config)
    model.eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


def arrays(model: Any, *, tied: bool = True) -> dict[str, Any]:
    return {
        name: tensor.detach().numpy()
        for name, tensor in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
