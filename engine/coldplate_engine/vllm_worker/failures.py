"""Why vLLM failed, in one line, out of what its processes wrote."""

import re
from collections.abc import Iterable

from coldplate_engine.messages import EngineError

_LONGEST = 400
_PREFIX = re.compile(r"^\([^)]* pid=\d+\)\s*(?:\w+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?")
_ERROR = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Interrupt)): *(\S.*)")
# Errors that only say that another process has failed.
_HEARSAY = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|Worker failed with error|"
    r"EngineCore encountered an issue|cancelled|Executor failed"
)
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|NPUWorkspaceAllocator tried to allocate|EL0004|"
    r"error code is (?:200000|207001|207018)\b",
    re.IGNORECASE,
)
# The device itself, not the model or a setting: another start may find it well.
_DEVICE = re.compile(
    r"error code is (?:507\d{3}|107\d{3}|207\d{3})|ERR00100|E[LZ]\d{4}|device is used|NPU function error|"
    r"Cannot re-initialize NPU"
)


def root_cause(lines: Iterable[str]) -> str | None:
    """The last error that is no hearsay, as "Name: text"; None when no line holds one."""
    found = None
    for line in lines:
        match = _ERROR.match(_PREFIX.sub("", line))
        if match and not _HEARSAY.search(match[2]):
            found = f"{match[1]}: {match[2]}"
    return found


def one_line(text: str) -> str:
    """Without line breaks, and not endless."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"


def is_device_fault(text: str) -> bool:
    """Whether a failure to start lies with the device, so that trying again has sense."""
    return bool(_DEVICE.search(text)) and not _OUT_OF_MEMORY.search(text)


def kind_of(text: str) -> EngineError:
    """What the death of an engine core means for the streams it had."""
    return EngineError.OUT_OF_MEMORY if _OUT_OF_MEMORY.search(text) else EngineError.DEVICE
