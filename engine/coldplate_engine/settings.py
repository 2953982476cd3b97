"""Settings of an engine worker."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from coldplate.settings import ProcessSettings
from coldplate_engine.kernels.library import KernelMode

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class EngineSettings(ProcessSettings):
    """An engine worker: one model on one device, for one server. --config FILE holds settings, too, as TOML."""

    engine: Literal["native", "vllm"] = Field(
        "native", description="native, or vllm, in vLLM's own environment: flags not listed here are then vLLM's."
    )
    vllm_args: list[str] = Field(default_factory=list, description="A flag for vLLM, as --vllm-args=--FLAG=VALUE.")
    model: Path = Field(description="Folder of the checkpoint, or a GGUF file.")
    served_model_name: str = Field("", description="Name in the hello message and the log; default: the folder's name.")
    device: str = Field(
        "cpu",
        description="cpu, npu:N, npu:0-3 (a group, for vllm), sim:ADDRESS#npu:N, the same with ,modelled or "
        ",modelled=qwen3-8b-w8a8 for scripted tokens at a chip's pace, or fault:PLAN,DEVICE in tests.",
    )
    listen: str = Field(description="Socket to serve on, such as unix:/run/coldplate/cpu.sock.")
    dtype: Dtype = Field("auto", description="Type of weights and cache; auto follows the device.")
    quantize: Literal["int4", "int8", "w8a8"] | None = Field(
        None, description="Convert plain weights while loading: 4-bit, 8-bit, or 8-bit with 8-bit activations."
    )
    max_model_len: int | None = Field(
        None, ge=2, description="Longest prompt and answer together; default: the model's."
    )
    max_num_seqs: int = Field(32, ge=1, le=1024, description="Streams that may run at once.")
    max_num_batched_tokens: int = Field(2048, ge=1, le=65536, description="Tokens in one step.")
    block_size: int = Field(16, ge=1, le=1024, description="Tokens in one KV cache block.")
    kv_cache_tokens: int | None = Field(None, ge=1, description="Size of the KV cache, in tokens.")
    kv_cache_gib: float | None = Field(None, gt=0, allow_inf_nan=False, description="Size of the KV cache, in GiB.")
    enable_prefix_caching: bool = Field(True, description="Reuse the computed blocks of prompts that begin alike.")
    kv_offload_gib: float = Field(
        0.0, ge=0, le=65536, allow_inf_nan=False, description="Host memory for prefix blocks the cache has no room for."
    )
    num_speculative_tokens: int = Field(
        0,
        ge=0,
        le=16,
        description="Tokens guessed ahead from what a stream has said before, where that pays; 0: none.",
    )
    prompt_lookup_max: int = Field(4, ge=1, le=16, description="Longest match a guess is made from, in tokens.")
    prompt_lookup_min: int = Field(2, ge=1, le=16, description="Shortest match a guess is made from, in tokens.")
    threads: int | None = Field(
        None, ge=1, le=1024, description="Compute threads; default: the processors this may use, by --cpu-workers."
    )
    cpu_workers: int = Field(
        1, ge=1, le=1024, description="Workers on this machine's processors: the default of --threads is a fair part."
    )
    kernels: KernelMode = Field(
        "auto", description="C++ kernels of the CPU: auto builds them where it can, on insists, off is torch alone."
    )
    orphan_timeout_s: float = Field(
        10.0, gt=0, allow_inf_nan=False, description="Exit after this long without a server."
    )
    test_faults: bool = Field(False, description="Allow fault: devices, which fail on purpose.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is below --max-num-seqs {self.max_num_seqs}: "
                "every running stream needs room for one token a step"
            )
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"--prompt-lookup-min {self.prompt_lookup_min} is above --prompt-lookup-max {self.prompt_lookup_max}"
            )
        if self.kv_cache_tokens is not None and self.kv_cache_gib is not None:
            raise ValueError("--kv-cache-tokens and --kv-cache-gib are two ways to say one thing: give one")
        if self.kv_cache_tokens is not None and self.kv_cache_tokens < self.block_size:
            raise ValueError(
                f"--kv-cache-tokens {self.kv_cache_tokens} is below one block (--block-size {self.block_size})"
            )
        if self.kv_offload_gib and not self.enable_prefix_caching:
            raise ValueError("--kv-offload-gib keeps cached prefixes: it needs --enable-prefix-caching")
        if not self.listen.startswith("unix:") or len(self.listen) <= len("unix:"):
            raise ValueError(f"--listen {self.listen!r}: expected unix:PATH")
        return self

    @property
    def name(self) -> str:
        path = self.model.resolve()
        return self.served_model_name or (path.stem if path.suffix == ".gguf" else path.name)
