"""Building a Hugging Face tokenizer out of a GGUF file's vocabulary."""

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from coldplate_engine.importing.errors import ImportFailed
from coldplate_engine.importing.gguf_file import GgufFile

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# Pre-tokenizers by `tokenizer.ggml.pre`, as llama.cpp reads them (src/llama-vocab.cpp) and as the models' own
# tokenizer.json files have them. Every pattern isolates its matches; what lies between is a piece too.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASED = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_PATTERNS: dict[str, tuple[str, ...]] = {
    "default": _DEFAULT,
    "gpt-2": (_GPT2,),
    "olmo": (_GPT2,),
    "phi-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "refact": (r"\p{N}", _GPT2),
    "codeshell": (r"\p{N}", _GPT2),
    "llama-bpe": (_CASED % "{1,3}",),
    "llama3": (_CASED % "{1,3}",),
    "llama-v3": (_CASED % "{1,3}",),
    "qwen2": (_CASED % "",),
    "deepseek-r1-qwen": (_CASED % "",),
}
_LLAMA3 = frozenset({"llama-bpe", "llama3", "llama-v3"})
_NFC = frozenset({"qwen2", "deepseek-r1-qwen"})

# Control tokens that end a turn or a text, whatever eos_token_id says; llama.cpp stops at them too.
_END_TEXTS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<|eom_id|>", "<EOT>", "</s>")


@dataclass(frozen=True, slots=True)
class ImportedTokenizer:
    """``end_ids`` are the ids a generation stops at, the file's own first; ``config`` is tokenizer_config.json."""

    tokenizer: Tokenizer
    config: dict[str, Any]
    bos_id: int | None
    pad_id: int | None
    end_ids: list[int]


def read_tokenizer(file: GgufFile, context_length: int) -> ImportedTokenizer:
    """Raises ImportFailed naming the metadata that is missing or not supported."""
    tokens = file.strings("tokenizer.ggml.tokens")
    kinds = (
        file.numbers("tokenizer.ggml.token_type") if "tokenizer.ggml.token_type" in file.metadata else [1] * len(tokens)
    )
    if len(kinds) != len(tokens):
        raise ImportFailed(file.path, f"has {len(tokens)} tokens and {len(kinds)} token types")
    if len(set(tokens)) != len(tokens):
        raise ImportFailed(file.path, "has the same token twice in tokenizer.ggml.tokens")
    kind = file.require("tokenizer.ggml.model", str)
    try:
        if kind == "gpt2":
            tokenizer, adds_bos = _byte_level(file, tokens)
        elif kind == "llama":
            tokenizer, adds_bos = _sentencepiece(file, tokens, kinds), True
        else:
            raise ImportFailed(file.path, f"has the unsupported tokenizer {kind[:40]!r}: supported are gpt2 and llama")
    except ImportFailed:
        raise
    except Exception as error:  # tokenizers raises bare Exceptions
        raise ImportFailed(file.path, f"its tokenizer is unusable: {error}") from error
    tokenizer.add_special_tokens(_added(tokens, kinds, special=True))
    tokenizer.add_tokens(_added(tokens, kinds, special=False))

    ids = {name: _special_id(file, name, len(tokens)) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
    adds_bos = file.get("tokenizer.ggml.add_bos_token", adds_bos) and ids["bos"] is not None
    adds_eos = file.get("tokenizer.ggml.add_eos_token", False) and ids["eos"] is not None
    _add_ends(tokenizer, tokens, ids["bos"] if adds_bos else None, ids["eos"] if adds_eos else None, kind == "gpt2")
    named = [ids["eos"], ids["eot"], ids["eom"]]
    by_text = [i for i, text in enumerate(tokens) if kinds[i] == _CONTROL and text in _END_TEXTS]
    end_ids = list(dict.fromkeys(i for i in [*named, *by_text] if i is not None))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": adds_bos,
        "add_eos_token": adds_eos,
        **{
            f"{theirs}_token": tokens[i]
            for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad"))
            if (i := ids[ours]) is not None
        },
    }
    if "tokenizer.chat_template" in file.metadata:
        config["chat_template"] = file.require("tokenizer.chat_template", str)
    return ImportedTokenizer(tokenizer, config, ids["bos"], ids["padding"], end_ids)


def _added(tokens: list[str], kinds: list[Any], special: bool) -> list[AddedToken]:
    wanted = (_CONTROL, _UNKNOWN) if special else (_USER_DEFINED,)
    return [
        AddedToken(text, special=special, normalized=False)
        for text, kind in zip(tokens, kinds, strict=True)
        if kind in wanted
    ]


def _special_id(file: GgufFile, name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in file.metadata:
        return None
    value = file.require(key, int)
    if value in (-1, 2**32 - 1):  # written for "none"
        return None
    if not 0 <= value < count:
        raise ImportFailed(file.path, f"the metadata key {key} is {value}: the vocabulary has {count} tokens")
    return value


def _byte_level(file: GgufFile, tokens: list[str]) -> tuple[Tokenizer, bool]:
    architecture = file.get("general.architecture", "")
    pre = file.get("tokenizer.ggml.pre", "gpt-2" if architecture == "gpt2" else "default")
    if pre not in _PATTERNS:
        raise ImportFailed(
            file.path, f"has the unsupported pre-tokenizer {pre[:40]!r}: supported are {', '.join(sorted(_PATTERNS))}"
        )
    merges = [_merge(file, merge) for merge in file.strings("tokenizer.ggml.merges")]
    vocabulary = {text: i for i, text in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, fuse_unk=False, ignore_merges=pre in _LLAMA3))
    if pre in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre in _LLAMA3


def _merge(file: GgufFile, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ImportFailed(file.path, f"tokenizer.ggml.merges holds {merge[:40]!r}: expected two pieces")
    return left, right


def _sentencepiece(file: GgufFile, tokens: list[str], kinds: list[Any]) -> Tokenizer:
    """SentencePiece BPE joins the neighbours whose joined piece scores best: so a merge ranks by its result's score."""
    scores = file.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ImportFailed(file.path, f"has {len(tokens)} tokens and {len(scores)} scores")
    vocabulary = {text: i for i, text in enumerate(tokens)}
    ranked = sorted((i for i, kind in enumerate(kinds) if kind == 1 and len(tokens[i]) > 1), key=lambda i: -scores[i])
    merges = [
        (text[:cut], text[cut:])
        for text in (tokens[i] for i in ranked)
        for cut in range(1, len(text))
        if text[:cut] in vocabulary and text[cut:] in vocabulary
    ]
    unknown = next((tokens[i] for i, kind in enumerate(kinds) if kind == _UNKNOWN), None)
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = file.get("tokenizer.ggml.add_space_prefix", True)
    steps: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip: list[Any] = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _add_ends(tokenizer: Tokenizer, tokens: list[str], bos: int | None, eos: int | None, byte_level: bool) -> None:
    steps: list[Any] = [processors.ByteLevel(trim_offsets=False)] if byte_level else []
    ends = [i for i in (bos, eos) if i is not None]
    if ends:
        first, last = ([] if i is None else [tokens[i]] for i in (bos, eos))
        steps.append(
            processors.TemplateProcessing(
                single=[*first, "$A", *last],
                pair=[*first, "$A", *last, *(f"{text}:1" for text in first), "$B:1", *(f"{text}:1" for text in last)],
                special_tokens=[(tokens[i], i) for i in dict.fromkeys(ends)],
            )
        )
    if steps:
        tokenizer.post_processor = processors.Sequence(steps)
