"""What the device's memory goes to, and what to change when it does not suffice."""

from collections.abc import Callable
from dataclasses import dataclass

from coldplate_engine.runner import ModelError

GIB = 1 << 30
_DEFAULT_SHARE = 0.25
_DEFAULT_MOST_BYTES = 2 * GIB
# Size of converted weights over that of the usual 16-bit checkpoint, scales and embedding included.
_QUANTIZED_SHARE = {"int8": 0.6, "w8a8": 0.6, "int4": 0.4}


@dataclass(frozen=True, slots=True)
class KvPlan:
    num_blocks: int
    block_size: int
    bytes: int

    @property
    def tokens(self) -> int:
        return self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes besides the cache. ``workspace`` tells what a step of so many tokens takes; ``offload`` is host memory."""

    available: int
    weights: int
    workspace: Callable[[int], int]
    step_tokens: int
    offload: int = 0
    offload_on_device: bool = True

    @property
    def left(self) -> int:
        """For the cache; never below 0."""
        offload = self.offload if self.offload_on_device else 0
        return max(0, self.available - self.weights - self.workspace(self.step_tokens) - offload)

    def sum(self, kv: KvPlan) -> str:
        """The start-up report."""
        parts = [
            f"weights {show(self.weights)}",
            f"KV cache {show(kv.bytes)} ({kv.tokens} tokens)",
            f"workspace {show(self.workspace(self.step_tokens))}",
        ]
        if self.offload:
            parts.append(f"KV offload {show(self.offload)}{'' if self.offload_on_device else ' of host memory'}")
        return f"{' + '.join(parts)} of {show(self.available)} available"


def plan_kv(
    needs: MemoryNeeds,
    *,
    bytes_per_token: int,
    block_size: int,
    useful_tokens: int,
    tokens: int | None = None,
    gib: float | None = None,
) -> KvPlan:
    """Size the cache.

    By default a quarter of what is left beside weights, workspace and offload, at most 2 GiB and at most
    ``useful_tokens`` (all slots at full length). Raises ModelError with what is needed, what is there, and what would
    fit.
    """
    _check_beside_weights(needs)
    if tokens is not None:
        wanted = tokens * bytes_per_token
    elif gib is not None:
        wanted = int(gib * GIB)
    else:
        wanted = min(int(needs.left * _DEFAULT_SHARE), _DEFAULT_MOST_BYTES)
        wanted = min(wanted, -(-useful_tokens // block_size) * block_size * bytes_per_token)
    block_bytes = bytes_per_token * block_size
    if wanted > needs.left:
        fitting = needs.left // block_bytes * block_size
        flag = f"--kv-cache-tokens {fitting}" if tokens is not None else f"--kv-cache-gib {needs.left / GIB:.3g}"
        way_out = f"{flag} would fit" if fitting else "free memory, or take a smaller model"
        raise ModelError(
            f"a KV cache of {show(wanted)} does not fit: {show(needs.left)} are left of {show(needs.available)} beside "
            f"{_beside(needs)}; {way_out}"
        )
    num_blocks = wanted // block_bytes
    if num_blocks < 1:
        raise ModelError(
            f"no room for a KV cache: one block of {block_size} tokens needs {show(block_bytes)}, {show(wanted)} are "
            f"meant for it beside {_beside(needs)}; set --kv-cache-tokens {block_size} or more, free memory, or take a "
            "smaller model"
        )
    return KvPlan(num_blocks, block_size, num_blocks * block_bytes)


def check_weights_fit(weight_bytes: int, available_bytes: int, quantize: str | None = None) -> None:
    """Raises ModelError when the weights alone are more than the device has available.

    ``weight_bytes`` are those of a checkpoint; ``quantize`` tells that it will be converted while it is read.
    """
    needed = int(weight_bytes * _QUANTIZED_SHARE.get(quantize or "", 1.0))
    if needed < available_bytes:
        return
    smaller = [name for name in ("int8", "int4") if weight_bytes * _QUANTIZED_SHARE[name] < available_bytes]
    way_out = f"--quantize {smaller[0]} would fit" if smaller and quantize is None else "take a smaller model"
    raise ModelError(
        f"the weights need {show(needed)}, the device has {show(max(0, available_bytes))} available: free memory, or "
        f"{way_out}"
    )


def _check_beside_weights(needs: MemoryNeeds) -> None:
    beside = needs.available - needs.weights
    if needs.workspace(needs.step_tokens) >= beside:
        fitting = needs.step_tokens
        while fitting > 1 and needs.workspace(fitting) > beside // 2:
            fitting //= 2
        way_out = f"--max-num-batched-tokens {fitting} would fit"
        if needs.workspace(fitting) >= beside:
            way_out = "free memory, or take a smaller model"
        raise ModelError(
            f"a step of {needs.step_tokens} tokens needs {show(needs.workspace(needs.step_tokens))} of workspace, "
            f"{show(max(0, beside))} are left of {show(needs.available)} beside the weights "
            f"({show(needs.weights)}); {way_out}"
        )
    if needs.offload_on_device and needs.offload and needs.left == 0:
        room = (beside - needs.workspace(needs.step_tokens)) / 2
        raise ModelError(
            f"--kv-offload-gib of {show(needs.offload)} does not fit: {show(int(2 * room))} are left of "
            f"{show(needs.available)} beside weights and workspace; --kv-offload-gib {room / GIB:.2g} would fit"
        )


def check_host_memory(offload_bytes: int, available_bytes: int) -> None:
    """Raises ModelError when the host has not what ``--kv-offload-gib`` wants of it."""
    if offload_bytes > available_bytes:
        raise ModelError(
            f"--kv-offload-gib of {show(offload_bytes)} does not fit: the host has {show(available_bytes)} available; "
            f"--kv-offload-gib {available_bytes / 2 / GIB:.2g} would fit"
        )


def _beside(needs: MemoryNeeds) -> str:
    offload = f", KV offload ({show(needs.offload)})" if needs.offload and needs.offload_on_device else ""
    return f"weights ({show(needs.weights)}), workspace ({show(needs.workspace(needs.step_tokens))}){offload}"


def show(size: int) -> str:
    """Bytes for a person."""
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / (1 << 20):.2f} MiB"
