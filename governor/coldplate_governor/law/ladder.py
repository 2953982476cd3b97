"""The ladder: which rungs the binding resource calls for, and the limits they make (governor.md B8).

    heat    clock, duty, prefill budget, pause prefill, overflow to the CPU, drain
    memory  prefill budget, batch cap, answers, contexts
    queue   shed the lowest class, answers

A rung the device does not honour is left out and the next one carries on.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from coldplate.limits import Limits, tightest
from coldplate.profile import DeviceProfile, Levers
from coldplate_governor.law import memory, waiting
from coldplate_governor.law.types import Mode

_PREFILL_BELOW = 0.6  # of duty: heat beyond what pacing does
_ALWAYS_HONOURED = frozenset({"admit", "min_priority"})  # the server does these itself
_ABOVE_LOWEST_CLASS = 2


@dataclass(frozen=True, slots=True)
class Needs:
    """What the claims ask for; hashable, so that limits are built only when something changes."""

    mode: Mode
    duty: float
    memory_cap: int | None
    memory_level: int
    queue_level: int
    stage: int
    clock_lowered: bool
    alternative: bool
    draining: bool
    honoured: tuple[str, ...]


class _Rungs:
    """Limits while they are built, and the rungs that made them."""

    def __init__(self, honoured: tuple[str, ...]) -> None:
        self.honoured = honoured
        self.values: dict[str, Any] = {}
        self.names: list[str] = []

    def cap(self, rung: str, field: str, value: float) -> bool:
        """Use a rung if the device honours its limit; of two values the tighter stays."""
        if self.honoured and field not in self.honoured and field not in _ALWAYS_HONOURED:
            return False
        self.values[field] = min(value, self.values.get(field, value))
        self.name(rung)
        return True

    def name(self, rung: str) -> None:
        if rung not in self.names:
            self.names.append(rung)


class Ladder:
    """The ladder of one profile."""

    def __init__(self, profile: DeviceProfile) -> None:
        self._npu = profile.kind == "npu"
        self._levers = profile.levers
        self._safe = profile.safe_limits
        self.build = lru_cache(maxsize=4096)(self._build)

    def _build(self, wanted: Needs) -> tuple[Limits, tuple[str, ...]]:
        """The limits and the rungs in use, from the top of the ladder down."""
        rungs = _Rungs(wanted.honoured)
        if wanted.clock_lowered:
            rungs.name("clock")
        self._heat(wanted, rungs)
        self._memory_and_queue(wanted, rungs)
        if wanted.mode == "RECOVERING" and 2**wanted.stage < self._levers.max_batch:
            rungs.cap("batch_cap", "max_batch", 2**wanted.stage)
        if wanted.mode in ("CRITICAL", "FALLBACK"):
            self._stop(wanted, rungs)
        if wanted.draining:
            rungs.cap("drain", "admit", False)
        limits = Limits(**rungs.values)
        if wanted.mode == "SAFE":
            limits, _ = tightest([("safe", self._safe), ("claims", limits)])
            rungs.name("duty")
        return limits, tuple(rungs.names)

    def _heat(self, wanted: Needs, rungs: _Rungs) -> None:
        """Pacing, or for a worker that cannot pace fewer threads, or fewer streams; below that the prefill budget."""
        duty, levers = wanted.duty, self._levers
        if duty < 1:
            _ = (
                rungs.cap("duty", "duty", duty)
                or rungs.cap("cpu_share", "cpu_share", duty)
                or rungs.cap("batch_cap", "max_batch", max(1, int(levers.max_batch * duty)))
            )
        if duty < _PREFILL_BELOW:
            budget = int(levers.max_prefill_tokens * duty / _PREFILL_BELOW)
            rungs.cap("prefill_budget", "max_prefill_tokens", max(levers.min_prefill_tokens, budget))

    def _memory_and_queue(self, wanted: Needs, rungs: _Rungs) -> None:
        levers = self._levers
        if wanted.memory_level >= memory.PREFILL:
            budget = max(levers.min_prefill_tokens, levers.max_prefill_tokens // 2)
            rungs.cap("prefill_budget", "max_prefill_tokens", budget)
        if wanted.memory_cap is not None:
            rungs.cap("batch_cap", "max_batch", min(wanted.memory_cap, levers.max_batch))
        if wanted.memory_level >= memory.CONTEXTS:
            rungs.cap("context_cap", "max_context_tokens", levers.short_context_tokens)
        if wanted.queue_level >= waiting.SHED:
            rungs.cap("shed", "min_priority", _ABOVE_LOWEST_CLASS)
        if wanted.memory_level >= memory.ANSWERS or wanted.queue_level >= waiting.SHORT_ANSWERS:
            rungs.cap("max_new_tokens", "max_new_tokens", levers.short_answer_tokens)

    def _stop(self, wanted: Needs, rungs: _Rungs) -> None:
        """No new work for a device in danger. A CPU is the last resort: it goes on admitting and pauses prefill."""
        rungs.cap("pause_prefill", "max_prefill_tokens", 0)
        if not self._npu:
            return
        rungs.values["admit"] = False
        if wanted.alternative:
            rungs.name("cpu_overflow")
        if wanted.mode == "FALLBACK":
            rungs.name("drain")


_LADDERS: dict[int, tuple[DeviceProfile, Ladder]] = {}


def ladder_of(profile: DeviceProfile) -> Ladder:
    """The ladder of a profile, made once for each."""
    known = _LADDERS.get(id(profile))
    if known is None or known[0] is not profile:
        if len(_LADDERS) > 64:
            _LADDERS.clear()
        known = _LADDERS[id(profile)] = (profile, Ladder(profile))
    return known[1]


def stages(levers: Levers) -> int:
    """Stages of RECOVERING until there are as many slots as the device ever has."""
    return max(1, (levers.max_batch - 1).bit_length())
