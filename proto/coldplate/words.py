"""Numbers as words, the same wherever a person reads them."""

from typing import Any

_SHARES = frozenset({"duty", "cpu_share", "clock_share"})


def limit_words(name: str, value: Any) -> str:
    """The value of a limit: ``62 %``, ``8``, ``no``; ``none`` for no limit."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{100 * value:.0f} %" if name in _SHARES else str(value)


def share_words(old: float, new: float) -> str:
    """A share before and after, as fine as it takes to see the difference: ``72 % → 47 %``, ``72.4 % → 71.9 %``."""
    digits = 0 if round(100 * old) != round(100 * new) else 1
    return f"{100 * old:.{digits}f} % → {100 * new:.{digits}f} %"


def celsius_words(celsius: float) -> str:
    """``85 °C``, ``71.5 °C``."""
    return f"{celsius:.1f}".removesuffix(".0") + " °C"


def seconds_words(seconds: float) -> str:
    """A time in seconds as ``8 s``, ``3 min``, ``2 h 5 min`` or ``4 d 2 h``."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes, hours = round(whole / 60), whole // 3600
    if minutes < 120:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {whole % 3600 // 60} min"
    return f"{hours // 24} d {hours % 24} h"
