"""Why the firmware has lowered a chip's clock: the bitmap of DCMI's low-power command 9 in words.

Bits as in the DCMI reference of the A2 products (``AICORE_FREQREDUC_CAUSE``); the firmware refreshes it every 100 ms.
"""

NONE = "none"
_CAUSES = {
    0: "idle",
    2: "thermal",
    3: "sw-edp",
    4: "hw-edp",
    5: "power-brake",
    8: "svfd",
    10: "power-cap",
}


def throttle_cause(bitmap: int) -> str:
    """Names of the causes joined by "+", ``NONE`` when no bit is set; a bit without a name is called ``bit-N``."""
    causes = [_CAUSES.get(bit, f"bit-{bit}") for bit in range(bitmap.bit_length()) if bitmap >> bit & 1]
    return "+".join(causes[:6]) or NONE
