"""Tiny checkpoints in the Hugging Face layout that the engine and transformers both load.

A *script* is a GPT-2 whose greedy answer is any tokens we choose: the position embedding is one-hot, everything
between it and the head is zero, and the head maps each position to one token. The answer depends on the length of the
prompt only, so one checkpoint holds several scripts, each starting behind a prompt of its own length.

Nothing here imports torch: files are written with numpy.
"""

import atexit
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from support import tokenizers as tok
from support.tokenizers import TokenizerSpec

Array = NDArray[np.float32]
_cache: dict[str, "Checkpoint"] = {}
_root: Path | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """One answer: the tokens that follow a prompt of exactly ``prompt_tokens`` tokens."""

    prompt_tokens: int
    token_ids: tuple[int, ...]

    @property
    def prompt(self) -> str:
        """A prompt of the right length in the BYTES tokenizer."""
        return "x" * self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model folder and, for script models, its answers by name."""

    path: Path
    tokenizer: TokenizerSpec
    context: int
    scripts: Mapping[str, Script]


def set_root(folder: Path) -> None:
    """Build checkpoints under ``folder`` from now on."""
    global _root
    _root = folder
    _cache.clear()


def ids(*parts: str | bytes | int) -> tuple[int, ...]:
    """Token ids in the BYTES tokenizer: text and bytes byte by byte, numbers as they are."""
    out: list[int] = []
    for part in parts:
        out += [part] if isinstance(part, int) else part.encode() if isinstance(part, str) else part
    return tuple(out)


def script_book(
    texts: Mapping[str, Sequence[int]],
    *,
    context: int = 256,
    tokenizer: TokenizerSpec | None = None,
    first_prompt: int = 16,
    prompt_tokens: Mapping[str, int] | None = None,
    eos: Sequence[int] = (tok.END_OF_TEXT_ID,),
    config_eos: int = tok.END_OF_TEXT_ID,
    layers: int = 1,
    vocabulary: int = tok.BYTES_VOCABULARY,
) -> Checkpoint:
    """A model with several scripts, laid out one behind the other from a prompt of ``first_prompt`` tokens on.

    ``prompt_tokens`` fixes the prompt length of some of them. Positions of no script answer end of text.
    ``eos`` goes into generation_config.json, ``config_eos`` into config.json.
    """
    columns = np.full(context, eos[0], dtype=np.int64)
    taken = np.zeros(context, dtype=bool)
    scripts: dict[str, Script] = {}
    fixed = dict(prompt_tokens or {})
    cursor = first_prompt
    for name in sorted(texts, key=lambda key: (key not in fixed, list(texts).index(key))):
        answer = tuple(texts[name])
        start = fixed.get(name, cursor)
        while name not in fixed and taken[start - 1 : start + len(answer)].any():
            start += 1
        at = slice(start - 1, start - 1 + len(answer))
        if start - 1 + len(answer) > context or taken[at].any():
            raise ValueError(f"script {name!r} of {len(answer)} tokens does not fit into context {context} at {start}")
        columns[at] = answer
        taken[start - 1 : start + len(answer)] = True  # one more position, which ends the answer
        scripts[name] = Script(start, answer)
        if name not in fixed:
            cursor = start + len(answer) + 1
    spec = tokenizer or TokenizerSpec()
    tensors, config = _position_gpt2(columns, context, context, layers, vocabulary)
    return _save("script", spec, tensors, config, eos=eos, config_eos=config_eos, scripts=scripts, context=context)


def script(text: str | Sequence[int], prompt_tokens: int = 16, **options: Any) -> Checkpoint:
    """A model with one script, named "text"."""
    answer = ids(text) if isinstance(text, str) else tuple(text)
    return script_book({"text": answer}, prompt_tokens={"text": prompt_tokens}, **options)


def cycle(
    token_ids: Sequence[int],
    *,
    context: int,
    tokenizer: TokenizerSpec | None = None,
    vocabulary: int = tok.BYTES_VOCABULARY,
) -> Checkpoint:
    """A model that says ``token_ids`` over and over: the token behind position p is ``token_ids[p % len]``.

    As narrow as its period, so that long contexts stay cheap.
    """
    period = np.array(token_ids, dtype=np.int64)
    width = max(64, -(-2 * len(period) // 64) * 64)  # half the width unused, or one token alone would have a logit of 0
    columns = np.resize(period, context)
    tensors, config = _position_gpt2(columns, width, context, 1, vocabulary, period=len(period))
    return _save("cycle", tokenizer or TokenizerSpec(), tensors, config, context=context)


def random_llama(
    *,
    seed: int = 0,
    context: int = 256,
    tokenizer: TokenizerSpec | None = None,
    tie: bool = False,
    with_head: bool = True,
    shards: int = 1,
    vocabulary: int = tok.BYTES_VOCABULARY,
    eos: Sequence[int] = (tok.END_OF_TEXT_ID,),
    width: int = 64,
) -> Checkpoint:
    """A 2-layer Llama with random weights and nearly flat logits, grouped-query attention included."""
    rng = np.random.default_rng(seed)
    heads, kv_heads, inner = 4, 2, 96
    tensors: dict[str, Array] = {"model.embed_tokens.weight": _normal(rng, vocabulary, width)}
    for layer in range(2):
        at = f"model.layers.{layer}."
        kv_width = width * kv_heads // heads
        for name, rows, columns in (
            ("self_attn.q_proj", width, width),
            ("self_attn.k_proj", kv_width, width),
            ("self_attn.v_proj", kv_width, width),
            ("self_attn.o_proj", width, width),
            ("mlp.gate_proj", inner, width),
            ("mlp.up_proj", inner, width),
            ("mlp.down_proj", width, inner),
        ):
            tensors[f"{at}{name}.weight"] = _normal(rng, rows, columns, 0.15)
        tensors[f"{at}input_layernorm.weight"] = np.ones(width, np.float32)
        tensors[f"{at}post_attention_layernorm.weight"] = np.ones(width, np.float32)
    tensors["model.norm.weight"] = np.ones(width, np.float32)
    head = tensors["model.embed_tokens.weight"].copy() if tie else _normal(rng, vocabulary, width)
    if with_head:
        tensors["lm_head.weight"] = head
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width // heads,
        "hidden_act": "silu",
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tie,
    }
    return _save("llama", tokenizer or TokenizerSpec(), tensors, config, eos=eos, context=context, shards=shards)


def random_gpt2(*, seed: int = 0, context: int = 256, tokenizer: TokenizerSpec | None = None) -> Checkpoint:
    """A 2-layer GPT-2 with random weights and nearly flat logits."""
    rng = np.random.default_rng(seed)
    width = 64
    tensors, config = _empty_gpt2(width, context, 2, tok.BYTES_VOCABULARY, inner=128, heads=4)
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            rows, columns = tensor.shape
            tensors[name] = _normal(rng, rows, columns, 0.1 if ".h." in name else 0.02)
    return _save("gpt2", tokenizer or TokenizerSpec(), tensors, config, context=context)


def _normal(rng: np.random.Generator, rows: int, columns: int, std: float = 0.02) -> Array:
    return rng.normal(0.0, std, (rows, columns)).astype(np.float32)


def _empty_gpt2(
    width: int, context: int, layers: int, vocabulary: int, *, inner: int, heads: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """All weights zero, norm gains one, the head untied."""
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (vocabulary, width),
        "transformer.wpe.weight": (context, width),
        "transformer.ln_f.weight": (width,),
        "transformer.ln_f.bias": (width,),
        "lm_head.weight": (vocabulary, width),
    }
    for layer in range(layers):
        at = f"transformer.h.{layer}."
        for name, shape in (
            ("ln_1.weight", (width,)),
            ("ln_1.bias", (width,)),
            ("attn.c_attn.weight", (width, 3 * width)),
            ("attn.c_attn.bias", (3 * width,)),
            ("attn.c_proj.weight", (width, width)),
            ("attn.c_proj.bias", (width,)),
            ("ln_2.weight", (width,)),
            ("ln_2.bias", (width,)),
            ("mlp.c_fc.weight", (width, inner)),
            ("mlp.c_fc.bias", (inner,)),
            ("mlp.c_proj.weight", (inner, width)),
            ("mlp.c_proj.bias", (width,)),
        ):
            shapes[at + name] = shape
    tensors: dict[str, Array] = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for name in tensors:
        if ".ln_" in name and name.endswith("weight"):
            tensors[name] += 1
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocabulary,
        "n_positions": context,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": inner,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False,
    }
    return tensors, config


def _position_gpt2(
    columns: NDArray[np.int64], width: int, context: int, layers: int, vocabulary: int, period: int | None = None
) -> tuple[dict[str, Array], dict[str, Any]]:
    """A GPT-2 whose token behind position p is ``columns[p]``."""
    tensors, config = _empty_gpt2(width, context, layers, vocabulary, inner=8, heads=width // 64 or 1)
    column_of = np.arange(context) % (period or context)
    tensors["transformer.wpe.weight"][np.arange(context), column_of] = 1
    tensors["lm_head.weight"][columns, column_of] = 10
    if vocabulary > tok.POISON_ID:
        tensors["transformer.wte.weight"][tok.POISON_ID] = np.nan
    return tensors, config


def _save(
    kind: str,
    spec: TokenizerSpec,
    tensors: dict[str, Array],
    config: dict[str, Any],
    *,
    context: int,
    eos: Sequence[int] = (tok.END_OF_TEXT_ID,),
    config_eos: int | None = None,
    scripts: Mapping[str, Script] | None = None,
    shards: int = 1,
) -> Checkpoint:
    config = {
        **config,
        "dtype": "float32",
        "bos_token_id": tok.IM_START_ID if spec.kind == "bytes" else None,
        "eos_token_id": eos[0] if config_eos is None else config_eos,
    }
    digest = hashlib.sha256(json.dumps([kind, asdict(spec), config, list(eos), shards], sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].tobytes())
    key = digest.hexdigest()[:16]
    if key not in _cache:
        folder = _folder() / f"{kind}-{key}"
        if not folder.exists():
            _write(folder, spec, tensors, config, eos, shards)
        _cache[key] = Checkpoint(folder, spec, context, scripts or {})
    return _cache[key]


def _folder() -> Path:
    global _root
    if _root is None:
        _root = Path(tempfile.mkdtemp(prefix="coldplate-checkpoints-"))
        atexit.register(shutil.rmtree, _root, ignore_errors=True)
    return _root


def _write(
    folder: Path,
    spec: TokenizerSpec,
    tensors: dict[str, Array],
    config: dict[str, Any],
    eos: Sequence[int],
    shards: int,
) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generation = {"eos_token_id": list(eos) if len(eos) > 1 else eos[0]}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))
    tok.save(spec, folder)
    metadata = {"format": "pt"}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata)
        return
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, folder / file, metadata)
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
