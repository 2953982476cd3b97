"""One uniform number per sampled token, a pure function of (seed, position).

A stream continues on another engine from these two integers. The mixer is SplitMix64's finaliser (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", 2014), run once over the seed and once over seed and
position; integer arithmetic only, so it is the same on every machine.
"""

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E37_79B9_7F4A_7C15


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits. ``seed`` is taken modulo 2**64; ``position`` is at least 0."""
    stream = _mix((seed + _GOLDEN) & _MASK)
    return (_mix((stream + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53
