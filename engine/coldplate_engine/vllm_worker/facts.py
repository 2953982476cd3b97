"""What a vLLM worker tells about itself."""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coldplate_engine.runner import ModelFacts
from coldplate_engine.settings import EngineSettings
from coldplate_engine.vllm_worker.launch import Launched
from coldplate_engine.vllm_worker.sampling import FEATURES, GUIDED
from coldplate_engine.worker_facts import WorkerFacts

LEVERS = ("duty", "max_batch", "max_prefill_tokens")


def features_of(config: Any) -> tuple[str, ...]:
    """Structured output needs the tokenizer."""
    return FEATURES if config.model_config.skip_tokenizer_init else (*FEATURES, GUIDED)


def facts_of(settings: EngineSettings, launched: Launched, block_size: int, kv_cache_tokens: int) -> WorkerFacts:
    from vllm.platforms import current_platform

    config = launched.config
    return WorkerFacts(
        version=launched.version,
        served_model_name=settings.name,
        model=_model_facts(config),
        max_model_len=config.model_config.max_model_len,
        max_num_seqs=config.scheduler_config.max_num_seqs * launched.cores,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        block_size=block_size,
        kv_cache_tokens=kv_cache_tokens,
        device=str(launched.devices[0]),
        chip=current_platform.get_device_name(0),
        simulated=False,
        threads=launched.threads,
        levers=LEVERS,
        load_phases=tuple(launched.phases),
        pid=os.getpid(),
        features=features_of(config),
        engine_settings=_settings(config),
        engine="vllm",
        further_devices=tuple(map(str, launched.devices[1:])),
        resume_level="continuous",
        rng="stateful",
    )


def _model_facts(config: Any) -> ModelFacts:
    model = config.model_config
    folder = Path(model.model)
    files = sorted(folder.glob("*.safetensors"))
    return ModelFacts(
        architecture=model.architecture,
        revision="",
        parameter_count=sum(count for file in files for count in _tensor_sizes(file)),
        vocabulary_size=model.get_vocab_size(),
        max_model_len=model.max_model_len,
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=str(model.quantization or ""),
        end_of_text_ids=frozenset(),
        weight_bytes=sum(file.stat().st_size for file in files),
    )


def _tensor_sizes(file: Path) -> Iterator[int]:
    """Elements of each tensor of a safetensors file, from its header."""
    with file.open("rb") as data:
        header = json.loads(data.read(struct.unpack("<Q", data.read(8))[0]))
    for name, entry in header.items():
        if name != "__metadata__":
            count = 1
            for length in entry["shape"]:
                count *= length
            yield count


def _settings(config: Any) -> dict[str, str]:
    """What an operator would look for, by the names of vLLM's flags; what is off or one is left out."""
    parallel, speculative = config.parallel_config, config.speculative_config
    found: dict[str, Any] = {
        "tensor-parallel-size": parallel.tensor_parallel_size,
        "pipeline-parallel-size": parallel.pipeline_parallel_size,
        "data-parallel-size": parallel.data_parallel_size,
        "enable-expert-parallel": parallel.enable_expert_parallel,
        "distributed-executor-backend": parallel.distributed_executor_backend,
        "quantization": config.model_config.quantization,
        "enforce-eager": config.model_config.enforce_eager,
        "enable-prefix-caching": config.cache_config.enable_prefix_caching,
        "async-scheduling": config.scheduler_config.async_scheduling,
        "load-format": config.load_config.load_format,
    }
    if speculative is not None:
        found["speculative-config.method"] = speculative.method
        found["speculative-config.num-speculative-tokens"] = speculative.num_speculative_tokens
    mode = getattr(config.compilation_config, "cudagraph_mode", None)
    found["compilation-config.cudagraph-mode"] = getattr(mode, "name", None)
    return {name: str(value).lower() if value is True else str(value) for name, value in found.items() if _tells(value)}


def _tells(value: object) -> bool:
    return value not in (None, False, "", "NONE") and not (isinstance(value, int) and value == 1 and value is not True)
