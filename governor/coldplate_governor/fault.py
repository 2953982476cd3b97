"""What nobody has thought of: it must neither end the loop nor fill the log."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)


class Fault:
    """Keeps the exceptions of one piece of work to itself: told when they begin, with where, and when they are over."""

    def __init__(self, words: str) -> None:
        self._words = words
        self._is_on = False

    @contextmanager
    def told_once(self, **where: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not self._is_on:
                log.error(self._words, reason=f"{type(error).__name__}: {error}", exc_info=True, **where)
            self._is_on = True
        else:
            if self._is_on:
                log.info("works again", fault=self._words, **where)
            self._is_on = False
