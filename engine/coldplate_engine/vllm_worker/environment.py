"""The environment that vLLM and its processes start in. What an owner has set stays as it is."""

import os
from collections.abc import MutableMapping, Sequence

import psutil

from coldplate.device_id import DeviceId

_GIB = 1 << 30
_KV_SHARE = 0.25  # of the memory available, as for a native worker
_MOST_KV_BYTES = 2 * _GIB


def prepare(devices: Sequence[DeviceId], threads: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what vLLM reads at import or in its children, for these devices and ``threads`` compute threads a rank."""
    defaults = {
        "HF_HUB_OFFLINE": "1",  # a worker serves a folder: nothing is fetched
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if devices[0].kind == "cpu":
        # Ranks bound to cores by NUMA node would leave the server beside them none, and need a node for each.
        defaults |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
        defaults["VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"] = "1"  # ranks do not end by themselves there
    elif devices[0].kind == "npu":
        defaults["ASCEND_RT_VISIBLE_DEVICES"] = ",".join(str(device.index) for device in devices)
    for name, value in defaults.items():
        environment.setdefault(name, value)


def on_this_machine_only(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep the traffic of ranks on the loopback interface."""
    environment.setdefault("VLLM_HOST_IP", "127.0.0.1")


def cpu_kv_bytes() -> int:
    """Memory for the KV cache on a CPU when nobody says: vLLM's own default is most of the machine."""
    return min(_MOST_KV_BYTES, int(psutil.virtual_memory().available * _KV_SHARE))
