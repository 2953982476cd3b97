"""The lines of a recording: JSON objects with their number and a checksum.

    {"kind":"tick","at":812.0,"group":"npu:0", … ,"n":41,"crc":"9f3c0d11"}

``n`` counts the lines of one start of the governor in one file, so that a missing line is noticed; ``crc`` is the
CRC-32 of the line without it, so that a damaged one is. A line that was cut, by kill -9 or a full disk, is followed by
a line of kind ``start``, or by nothing.
"""

import json
import re
import zlib
from hashlib import blake2b
from typing import Any

_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}$')
_COMPACT = (",", ":")


class LineDamaged(ValueError):
    """A line that is not as it was written."""


def seal(body: dict[str, Any]) -> bytes:
    """The line for ``body``, with its line break."""
    text = json.dumps(body, separators=_COMPACT).encode()
    return text[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(text)


def unseal(line: bytes) -> dict[str, Any]:
    """What ``seal`` was given; ``line`` without its line break. Raises LineDamaged."""
    found = _SEAL.search(line)
    if found is None:
        raise LineDamaged("has no checksum at its end")
    text = line[: found.start()] + b"}"
    if int(found[1], 16) != zlib.crc32(text):
        raise LineDamaged("does not fit its checksum")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LineDamaged(f"is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise LineDamaged("is no object")
    return body


def digest(value: Any) -> str:
    """Sixteen characters that stand for a JSON value, to the last bit of every number."""
    text = json.dumps(value, separators=_COMPACT, sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()
