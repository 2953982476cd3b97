"""What each token adds to the text, worked out once per tokenizer from its decoder."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer as Backend

_SPACE_MARK = "▁"


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes with (GPT-2's ``bytes_to_unicode``)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


@dataclass(slots=True)
class PieceTable:
    """``entries[id]`` is the text a token adds, or its bytes where they are not whole characters by themselves.

    ``first`` gives the text of the token an answer starts with, where that differs; up to ``strip`` leading
    ``strip_char`` are taken off the start of the text. Ids in ``skipped`` add nothing and do not count as first.
    """

    entries: list[str | bytes]
    skipped: frozenset[int]
    first: Callable[[int], str] | None = None
    strip: int = 0
    strip_char: str = " "
    _without_special: "PieceTable | None" = field(default=None, repr=False)

    def without(self, ids: frozenset[int]) -> "PieceTable":
        """The same table in which ``ids`` add nothing; made once."""
        if self._without_special is None:
            entries = self.entries.copy()
            for index in ids:
                if index < len(entries):
                    entries[index] = ""
            self._without_special = PieceTable(
                entries, self.skipped | ids, self.first, self.strip, self.strip_char, _without_special=None
            )
        return self._without_special


def piece_table(backend: Backend, size: int) -> PieceTable | None:
    """The table for ids below ``size``, or None when the decoder does not treat tokens one by one."""
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else None
    build = _plan(decoder)
    if build is None:
        return None
    names = [backend.id_to_token(index) for index in range(size)]
    skipped = frozenset(index for index, name in enumerate(names) if name is None)
    return build(names, skipped)


_Names = list[str | None]
_Build = Callable[[_Names, frozenset[int]], PieceTable]


def _plan(decoder: dict[str, Any] | None) -> _Build | None:
    if decoder is None:
        return lambda names, skipped: _per_token(names, skipped, lambda name: " " + name, lambda name: name)
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level
    if kinds == ["Metaspace"]:
        return lambda names, skipped: _metaspace(names, skipped, steps[0])
    if kinds == ["WordPiece"] and not steps[0]["cleanup"]:
        prefix = steps[0]["prefix"]
        return lambda names, skipped: _per_token(
            names,
            skipped,
            lambda name: name[len(prefix) :] if name.startswith(prefix) else " " + name,
            lambda name: name,
        )
    return _byte_fallback_plan(steps)


def _byte_fallback_plan(steps: list[dict[str, Any]]) -> _Build | None:
    """Replace*, ByteFallback, Fuse, then at most one Strip at the left: the decoder of SentencePiece models."""
    rest = list(steps)
    replacements: list[tuple[str, str]] = []
    while rest and rest[0]["type"] == "Replace" and "String" in rest[0]["pattern"]:
        step = rest.pop(0)
        replacements.append((step["pattern"]["String"], step["content"]))
    if [step["type"] for step in rest[:2]] != ["ByteFallback", "Fuse"]:
        return None
    rest = rest[2:]
    strip, strip_char = 0, " "
    if rest and rest[0]["type"] == "Strip" and not rest[0]["stop"]:
        strip, strip_char = rest[0]["start"], rest[0]["content"]
        rest = rest[1:]
    if rest:
        return None

    def entry(name: str) -> str | bytes:
        for old, new in replacements:
            name = name.replace(old, new)
        return _fallback_byte(name) or name

    return lambda names, skipped: PieceTable(
        [_whole(entry(name)) if name is not None else "" for name in names], skipped, strip=strip, strip_char=strip_char
    )


def _fallback_byte(name: str) -> bytes | None:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return bytes([int(name[3:5], 16)])
        except ValueError:
            return None
    return None


def _byte_level(names: _Names, skipped: frozenset[int]) -> PieceTable:
    alphabet = _byte_alphabet()

    def entry(name: str) -> str | bytes:
        try:
            return _whole(bytes([alphabet[char] for char in name]))
        except KeyError:
            return name  # an added token, written as it stands

    return PieceTable([entry(name) if name is not None else "" for name in names], skipped)


def _metaspace(names: _Names, skipped: frozenset[int], step: dict[str, Any]) -> PieceTable:
    mark = step.get("replacement", _SPACE_MARK)
    drop_first = step.get("prepend_scheme", "always") != "never"
    entries: list[str | bytes] = [name.replace(mark, " ") if name is not None else "" for name in names]
    first = (lambda index: (names[index] or "").replace(mark, "")) if drop_first else None
    return PieceTable(entries, skipped, first)


def _per_token(
    names: _Names, skipped: frozenset[int], later: Callable[[str], str], first: Callable[[str], str]
) -> PieceTable:
    entries: list[str | bytes] = [later(name) if name is not None else "" for name in names]
    return PieceTable(entries, skipped, lambda index: first(names[index] or ""))


def _whole(piece: str | bytes) -> str | bytes:
    """Text where ``piece`` is whole characters, so that most tokens need no decoding at run time."""
    if isinstance(piece, str):
        return piece
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return piece
