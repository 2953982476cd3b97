"""GPT-2 files."""

from collections.abc import Iterator

import numpy as np

from coldplate_engine.importing.errors import ImportFailed
from coldplate_engine.importing.gguf_checkpoint import (
    Checkpoint,
    Table,
    embedding_rows,
    is_tied,
    positive,
    positive_real,
)
from coldplate_engine.importing.gguf_file import GgufFile


def gpt2(file: GgufFile) -> Checkpoint:
    layers, hidden = positive(file, "gpt2.block_count"), positive(file, "gpt2.embedding_length")
    heads, context = positive(file, "gpt2.attention.head_count"), positive(file, "gpt2.context_length")
    intermediate = file.get("gpt2.feed_forward_length", 4 * hidden)
    if hidden % heads:
        raise ImportFailed(file.path, f"{heads} heads do not divide a width of {hidden}")
    rows, tied = embedding_rows(file), is_tied(file)

    table = Table(file)
    table.add("token_embd.weight", "transformer.wte.weight", (rows, hidden))
    table.add("position_embd.weight", "transformer.wpe.weight", (context, hidden))
    for source, name, shape in _layers(layers, hidden, intermediate):
        table.add(f"{source}.weight", f"{name}.weight", shape, np.transpose if len(shape) == 2 else None)
        table.add(f"{source}.bias", f"{name}.bias", shape[-1:])
    table.add("output_norm.weight", "transformer.ln_f.weight", (hidden,))
    table.add("output_norm.bias", "transformer.ln_f.bias", (hidden,))
    if tied:
        table.skip("output.weight")
    else:
        table.add("output.weight", "lm_head.weight", (rows, hidden))

    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_ctx": context,
        "n_embd": hidden,
        "n_head": heads,
        "n_inner": None if intermediate == 4 * hidden else intermediate,
        "n_layer": layers,
        "n_positions": context,
        "layer_norm_epsilon": positive_real(file, "gpt2.attention.layer_norm_epsilon"),
        "tie_word_embeddings": tied,
        "vocab_size": rows,
    }
    return Checkpoint(config, table.finish(), rows, context)


def _layers(layers: int, hidden: int, intermediate: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Each layer's modules; the checkpoint keeps matrices as [in, out], GGUF as [out, in]."""
    for layer in range(layers):
        source, name = f"blk.{layer}", f"transformer.h.{layer}"
        yield f"{source}.attn_norm", f"{name}.ln_1", (hidden,)
        yield f"{source}.attn_qkv", f"{name}.attn.c_attn", (hidden, 3 * hidden)
        yield f"{source}.attn_output", f"{name}.attn.c_proj", (hidden, hidden)
        yield f"{source}.ffn_norm", f"{name}.ln_2", (hidden,)
        yield f"{source}.ffn_up", f"{name}.mlp.c_fc", (hidden, intermediate)
        yield f"{source}.ffn_down", f"{name}.mlp.c_proj", (intermediate, hidden)
