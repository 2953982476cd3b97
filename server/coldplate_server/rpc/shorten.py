"""Callers' values in messages, cut to a length that every transport lets through."""

_QUOTED_CHARACTERS = 60


def quoted(value: str, limit: int = _QUOTED_CHARACTERS) -> str:
    """``value`` in quotes, control characters escaped; the start and the length of a long one."""
    if len(value) <= limit:
        return ascii_control(f'"{value}"')
    return ascii_control(f'"{value[:limit]}…"') + f" ({len(value)} characters)"


def ascii_control(text: str) -> str:
    """``text`` with everything that does not print escaped, so that it stays one harmless line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def clip(text: str, max_bytes: int) -> str:
    """The start of ``text``, at most ``max_bytes`` of UTF-8, with an ellipsis where it was cut."""
    data = text[: max_bytes + 1].encode(errors="replace")
    if len(data) <= max_bytes:
        return text
    return data[: max_bytes - 3].decode(errors="ignore") + "…"
