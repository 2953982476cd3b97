"""How many tokens one call of the model may hold after the device ran out of memory."""

_CALLS_BEFORE_GROWTH = 16
_GROWTH = 1.5


class MemoryCap:
    """Halved when a call runs out of memory; grows back by half after every 16 good calls until it no longer binds."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.tokens = most
        self._good_calls = 0

    @property
    def binds(self) -> bool:
        return self.tokens < self.most

    def ran_out(self, tokens: int) -> None:
        """A call with ``tokens`` tokens ran out of memory."""
        self.tokens = max(1, min(self.tokens, tokens) // 2)
        self._good_calls = 0

    def succeeded(self) -> None:
        if not self.binds:
            return
        self._good_calls += 1
        if self._good_calls >= _CALLS_BEFORE_GROWTH:
            self.tokens = min(self.most, max(self.tokens + 1, int(self.tokens * _GROWTH)))
            self._good_calls = 0
