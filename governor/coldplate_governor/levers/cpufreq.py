"""``cpufreq``: the processor's highest clock, through the kernel's ``scaling_max_freq`` of every policy.

It holds for the whole machine, so other programs feel it, too. It takes root, or write access to those files.
"""

from dataclasses import dataclass
from pathlib import Path

from coldplate_governor.levers.base import Level, LeverError

ROOT = "/sys/devices/system/cpu"
_STEP = 0.05  # the grid of levels: the kernel rounds to what the processor has
_FLOOR = 0.2


@dataclass(frozen=True, slots=True)
class _Policy:
    """One clock domain; kHz."""

    folder: Path
    slowest: int
    fastest: int

    @property
    def limit(self) -> Path:
        return self.folder / "scaling_max_freq"


class CpufreqLever:
    """Reads and writes below ``root``, which holds ``cpufreq/policy*`` as /sys/devices/system/cpu does."""

    name = "cpufreq"

    def __init__(self, root: str = ROOT) -> None:
        self._root = Path(root)
        self._before: dict[str, int] = {}

    def original(self) -> str:
        return " ".join(f"{policy.folder.name}={_number(policy.limit)}" for policy in self._policies())

    def probe(self, original: str) -> tuple[Level, ...]:
        policies = self._policies()
        self.restore(original)
        top = min(self._before[policy.folder.name] / policy.fastest for policy in policies)
        floor = max(_FLOOR, *(policy.slowest / policy.fastest for policy in policies))
        steps = [round(number * _STEP, 2) for number in range(round(1 / _STEP), 0, -1)]
        levels = tuple(Level(share, f"{share:.0%}") for share in steps if floor <= share < top - _STEP / 2)
        if not levels:
            raise LeverError(f"{self.name}: {original} leaves no slower clock")
        return (Level(min(1.0, top), f"{top:.0%}"), *levels)

    def set(self, level: Level) -> float:
        in_force = 0.0
        for policy in self._policies():
            highest = self._before.get(policy.folder.name, policy.fastest)
            wanted = min(highest, max(policy.slowest, round(level.share * policy.fastest)))
            now = self._write(policy, wanted)
            if now > wanted + _STEP * policy.fastest:
                raise LeverError(
                    f"{self.name}: {policy.folder.name}: {wanted} kHz was asked for and {now} kHz is the limit"
                )
            in_force = max(in_force, now / policy.fastest)
        return min(1.0, in_force)

    def restore(self, original: str) -> None:
        self._before = _parsed(original)
        for policy in self._policies():
            wanted = self._before.get(policy.folder.name)
            if wanted is None:
                continue  # came with a processor that was put to work since
            now = self._write(policy, wanted)
            if abs(now - wanted) > _STEP * policy.fastest:
                raise LeverError(
                    f"{self.name}: {policy.folder.name}: {wanted} kHz was to be put back and {now} kHz is the limit"
                )

    def _policies(self) -> list[_Policy]:
        folders = sorted(self._root.glob("cpufreq/policy*"))
        if not folders:
            raise LeverError(
                f"{self.name}: there is no {self._root}/cpufreq/policy*: this machine (often a virtual one) "
                "does not let its clock be set"
            )
        return [
            _Policy(folder, _number(folder / "cpuinfo_min_freq"), max(1, _number(folder / "cpuinfo_max_freq")))
            for folder in folders
        ]

    def _write(self, policy: _Policy, khz: int) -> int:
        try:
            policy.limit.write_text(str(khz))
        except OSError as error:
            raise LeverError(f"{self.name}: {policy.limit}: {error.strerror or error}; it takes root") from error
        return _number(policy.limit)


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError) as error:
        raise LeverError(f"cpufreq: {path}: {getattr(error, 'strerror', None) or error}") from error


def _parsed(original: str) -> dict[str, int]:
    try:
        return {name: int(khz) for name, _, khz in (part.partition("=") for part in original.split())}
    except ValueError as error:
        raise LeverError(f"cpufreq: {original[:200]!r} is no former setting") from error
