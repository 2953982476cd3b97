"""What a worker tells about itself once it is ready."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coldplate_engine.runner import ModelFacts


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """``levers`` are the limits the worker itself honours; ``load_phases`` are names with seconds.

    ``features`` are what a submission may ask for beyond plain sampling; ``engine_settings`` are further settings worth
    knowing, by the names of their flags. A group of devices is ``device`` and ``further_devices``.
    """

    version: str
    served_model_name: str
    model: ModelFacts
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_cache_tokens: int
    device: str
    chip: str
    simulated: bool
    threads: int
    levers: tuple[str, ...]
    load_phases: tuple[tuple[str, float], ...]
    pid: int
    features: tuple[str, ...] = ()
    engine_settings: Mapping[str, str] = field(default_factory=dict)
    kv_cache_bytes: int = 0
    engine: str = "coldplate"
    further_devices: tuple[str, ...] = ()
    resume_level: Literal["exact", "continuous"] = "exact"
    rng: Literal["counter", "stateful"] = "counter"
