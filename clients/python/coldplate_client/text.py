"""Text that can be sent."""


def check_text(name: str, text: str) -> str:
    """Return ``text``; raises ValueError naming the argument when it holds a lone surrogate, which is no character."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: expected text, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name}: the character at position {error.start} is a lone surrogate "
            f"(U+{ord(text[error.start]):04X}), which is not valid text"
        ) from None
    return text
