"""How large the KV cache becomes, and whether model and cache fit the device."""

from dataclasses import dataclass

from coldplate_engine.runner import ModelError

GIB = 1 << 30
_DEFAULT_SHARE = 0.25
_DEFAULT_MOST_BYTES = 2 * GIB


@dataclass(frozen=True, slots=True)
class KvPlan:
    num_blocks: int
    block_size: int
    bytes: int

    @property
    def tokens(self) -> int:
        return self.num_blocks * self.block_size


def plan_kv(
    *,
    available_bytes: int,
    bytes_per_token: int,
    block_size: int,
    useful_tokens: int,
    tokens: int | None,
    gib: float | None,
) -> KvPlan:
    """Size the cache with ``available_bytes`` left beside the weights.

    By default a quarter of what is available, at most 2 GiB and at most ``useful_tokens`` (all slots at full length).
    Raises ModelError with what is needed and what is there.
    """
    available_bytes = max(0, available_bytes)
    if tokens is not None:
        wanted = tokens * bytes_per_token
    elif gib is not None:
        wanted = int(gib * GIB)
    else:
        wanted = min(int(available_bytes * _DEFAULT_SHARE), _DEFAULT_MOST_BYTES)
        wanted = min(wanted, -(-useful_tokens // block_size) * block_size * bytes_per_token)
    if wanted > available_bytes:
        raise ModelError(
            f"a KV cache of {show(wanted)} does not fit: {show(available_bytes)} are available beside "
            "the weights; lower --kv-cache-tokens or --kv-cache-gib"
        )
    num_blocks = wanted // (bytes_per_token * block_size)
    if num_blocks < 1:
        one = bytes_per_token * block_size
        raise ModelError(
            f"no room for a KV cache: one block of {block_size} tokens needs {show(one)}, {show(wanted)} are "
            "meant for it; free memory, set --kv-cache-tokens, or take a smaller model"
        )
    return KvPlan(num_blocks, block_size, num_blocks * block_size * bytes_per_token)


def check_weights_fit(weight_bytes: int, available_bytes: int) -> None:
    """Raises ModelError when the weights alone are more than the device has available."""
    if weight_bytes >= available_bytes:
        raise ModelError(
            f"the weights need {show(weight_bytes)}, the device has {show(available_bytes)} available: "
            "free memory, or take a smaller model or a narrower --dtype"
        )


def show(size: int) -> str:
    """Bytes for a person."""
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / (1 << 20):.2f} MiB"
