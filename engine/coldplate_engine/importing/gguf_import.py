"""Turning a GGUF file into a Hugging Face safetensors directory, whole or not at all.

Values keep their exact worth: F16 and BF16 tensors stay as they are, everything else is stored in float32. Half
precision would not do for block formats: a Q4_1 value is scale * code + minimum with two fp16 numbers, and the sum of
their products needs more than fp16's 11 bits.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coldplate.paths import model_cache
from coldplate_engine.importing.errors import ImportFailed
from coldplate_engine.importing.gguf_checkpoint import Checkpoint, Weight
from coldplate_engine.importing.gguf_families import read_checkpoint
from coldplate_engine.importing.gguf_file import GgufFile
from coldplate_engine.importing.gguf_tokenizer import ImportedTokenizer, read_tokenizer
from coldplate_engine.importing.safetensors_stream import StreamedTensor, write_safetensors

__all__ = ["ImportFailed", "import_gguf", "is_complete", "link_gguf", "read_record"]

ReportProgress = Callable[[str, float], None]  # phase, share of the whole import done in [0, 1]

RECORD = "coldplate-import.json"
_FORMAT = 1  # raised when the importer writes something else for the same file, so that caches are made anew
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SPARE_BYTES = 32 << 20  # tokenizer and configuration files


def import_gguf(source: Path, target: Path | None = None, *, progress: ReportProgress) -> Path:
    """Import ``source`` into the directory ``target``, by default one of the file's name in the model cache.

    Returns the directory: config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
    model.safetensors and a record of the import. It appears whole or not at all; when it is there already and was
    made from the same file, it is left as it is. Safe with several processes at once.

    Raises ImportFailed: one line with the file and the reason.
    """
    target = (model_cache() / source.stem if target is None else target).absolute()
    progress("reading", 0.0)
    file, checkpoint, tokenizer = _read(source)
    origin = {"format": _FORMAT, "source": source.name, "bytes": file.size, "sha256": _sha256(source)}
    progress("reading", 0.1)
    tensors = [_streamed(file, weight) for weight in checkpoint.weights]

    def write_weights(partial: Path) -> None:
        write_safetensors(partial / "model.safetensors", tensors, lambda share: progress("weights", 0.1 + 0.85 * share))

    needed = sum(tensor.nbytes for tensor in tensors) + _SPARE_BYTES
    return _make(target, origin, checkpoint, tokenizer, tensors, write_weights, needed, progress)


def link_gguf(source: Path, *, progress: ReportProgress) -> Path:
    """A folder in the model cache with configuration, tokenizer and a link to ``source``.

    An engine serves it with the file's own bits. The folder is named for the file, its place, size and time.
    Raises ImportFailed: one line with the file and the reason.
    """
    progress("reading", 0.0)
    file, checkpoint, tokenizer = _read(source)
    place = source.resolve()
    identity = hashlib.sha256(f"{place}\0{file.size}\0{place.stat().st_mtime_ns}".encode()).hexdigest()
    origin = {"format": _FORMAT, "source": source.name, "bytes": file.size, "sha256": identity}
    target = model_cache() / f"{source.stem}-{identity[:8]}"
    tensors = [_streamed(file, weight) for weight in checkpoint.weights]

    def link(partial: Path) -> None:
        (partial / "model.gguf").symlink_to(place)

    return _make(target, origin, checkpoint, tokenizer, tensors, link, _SPARE_BYTES, progress)


def _read(source: Path) -> tuple[GgufFile, Checkpoint, ImportedTokenizer]:
    file = GgufFile(source)
    checkpoint = read_checkpoint(file)
    tokenizer = read_tokenizer(file, checkpoint.context_length)
    count = tokenizer.tokenizer.get_vocab_size(with_added_tokens=True)
    if count > checkpoint.vocabulary_size:
        raise ImportFailed(source, f"has {count} tokens but only {checkpoint.vocabulary_size} rows of embeddings")
    return file, checkpoint, tokenizer


def _make(
    target: Path,
    origin: dict[str, Any],
    checkpoint: Checkpoint,
    tokenizer: ImportedTokenizer,
    tensors: list[StreamedTensor],
    write_weights: Callable[[Path], None],
    needed: int,
    progress: ReportProgress,
) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_importer(target):
            if _reusable(target, origin):
                return target
            free = shutil.disk_usage(target.parent).free
            if free < needed:
                raise ImportFailed(
                    target,
                    f"the import needs {needed >> 20} MiB, the disk has {free >> 20} MiB free: choose another folder",
                )
            _write_directory(
                target, _config(checkpoint, tokenizer, tensors), tokenizer, origin, write_weights, progress
            )
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ImportFailed(target, "the disk is full: free some space or choose another folder") from error
        raise ImportFailed(error.filename or target, error.strerror or str(error)) from error
    progress("done", 1.0)
    return target


def read_record(directory: Path) -> dict[str, Any] | None:
    """The record an import left in the directory; None when there is none."""
    try:
        record = json.loads((directory / RECORD).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def is_complete(directory: Path) -> bool:
    """Whether an import by this version made the directory and every file still has its size."""
    record = read_record(directory)
    if record is None or record.get("format") != _FORMAT or not isinstance(record.get("files"), dict):
        return False
    try:
        return all((directory / name).stat().st_size == size for name, size in record["files"].items())
    except OSError:
        return False


def _reusable(target: Path, origin: dict[str, Any]) -> bool:
    """True: there, whole and from the same file. False: absent, or a broken or outdated import to be replaced."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    record = read_record(target)
    if record is None:
        raise ImportFailed(target, "exists and is no import of ours: remove it or choose another folder")
    if record.get("sha256") != origin["sha256"]:
        made_from = str(record.get("source"))[:80]
        raise ImportFailed(target, f"exists, made from another file ({made_from}): remove it or choose another folder")
    return is_complete(target)


@contextmanager
def _only_importer(target: Path) -> Iterator[None]:
    """Hold the lock on importing into ``target``; the system frees it when a process dies."""
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in target.parent.glob(f"{_partial_prefix(target)}*"):
            shutil.rmtree(leftover, ignore_errors=True)  # of an importer that was killed
        yield


def _partial_prefix(target: Path) -> str:
    return f".{target.name}.partial-"


def _write_directory(
    target: Path,
    config: dict[str, Any],
    tokenizer: ImportedTokenizer,
    origin: dict[str, Any],
    write_weights: Callable[[Path], None],
    progress: ReportProgress,
) -> None:
    partial = Path(tempfile.mkdtemp(prefix=_partial_prefix(target), dir=target.parent))
    try:
        partial.chmod(0o755)
        progress("tokenizer", 0.1)
        tokenizer.tokenizer.save(str(partial / "tokenizer.json"))
        _write_json(partial / "tokenizer_config.json", tokenizer.config)
        _write_json(partial / "config.json", config)
        _write_json(partial / "generation_config.json", _generation_config(tokenizer))
        write_weights(partial)
        progress("finishing", 0.95)
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
        _write_json(partial / RECORD, {**origin, "files": sizes})
        for path in partial.iterdir():
            _sync(path)
        _sync(partial)
        _put_in_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, target: Path) -> None:
    if target.exists() and any(target.iterdir()):
        old = Path(tempfile.mkdtemp(prefix=_partial_prefix(target), dir=target.parent))
        target.rename(old)
        partial.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        partial.rename(target)
    _sync(target.parent)


def _streamed(file: GgufFile, weight: Weight) -> StreamedTensor:
    def values() -> Any:
        data = file.values(weight.source)
        return data if weight.transform is None else weight.transform(data)

    return StreamedTensor(weight.name, weight.source.stored_dtype, weight.shape, values)


def _config(checkpoint: Checkpoint, tokenizer: ImportedTokenizer, tensors: list[StreamedTensor]) -> dict[str, Any]:
    matrices = {tensor.dtype for tensor in tensors if len(tensor.shape) > 1}
    dtype = _DTYPES[matrices.pop()] if len(matrices) == 1 else "float32"
    return {
        **checkpoint.config,
        "dtype": dtype,
        "torch_dtype": dtype,  # what transformers before 4.56 reads
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.end_ids[0] if tokenizer.end_ids else None,
        "pad_token_id": tokenizer.pad_id,
    }


def _generation_config(tokenizer: ImportedTokenizer) -> dict[str, Any]:
    return {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.end_ids,
        "pad_token_id": tokenizer.pad_id,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ImportFailed(path, error.strerror or str(error)) from error
