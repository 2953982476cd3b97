"""Which law this is: a digest of the code that decides, so that a recording says by which it was made."""

from functools import cache
from hashlib import blake2b
from importlib import resources

_PACKAGE = "coldplate_governor.law"
_ALSO = (("coldplate", "limits.py"), ("coldplate", "profile.py"))


@cache
def law_id() -> str:
    """Twelve characters; another edit of the law, even of its comments, has others."""
    sources = sorted(
        (entry for entry in resources.files(_PACKAGE).iterdir() if entry.name.endswith(".py")),
        key=lambda entry: entry.name,
    )
    sources += [resources.files(package) / name for package, name in _ALSO]
    whole = blake2b(digest_size=6)
    for entry in sources:
        whole.update(entry.name.encode() + b"\0" + entry.read_bytes() + b"\0")
    return whole.hexdigest()
