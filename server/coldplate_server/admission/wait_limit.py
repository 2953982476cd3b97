"""AIMD on the tokens that may wait, by how long they wait.

What the engines hold is bounded by their own credit; this bounds what waits for them, so that waiting stays near a
target. DAGOR's lesson is to go by the time in the queue, not by that of the whole request, which depends on the
length of the answer; Breakwater's, that the signal must not lag behind the queue: the wait that the queue stands for
now counts beside those that have been waited.

The target is given and never measured, so that load cannot raise it.
"""

import math

CUT = 0.9
WINDOW_S = 1.0
WINDOW_STARTS = 100
CALM_S = 5.0


class WaitLimit:
    """The limit of one lane. ``tokens`` None is no limit: none was needed of late."""

    def __init__(self, target_s: float, probe_tokens: int) -> None:
        self.tokens: float | None = None
        self.wait_s = 0.0
        self._target_s = target_s
        self._probe_tokens = probe_tokens
        self._opened_s: float | None = None
        self._cut_s = -math.inf
        self._blocked_s = -math.inf
        self._most = 0
        self._waits = 0
        self._waited_s = 0.0

    def started(self, wait_s: float, since_s: float) -> None:
        """A stream that had been in the queue from ``since_s`` went to an engine.

        Who came before the last cut was let in under a limit that holds no more, and says nothing of the new one.
        """
        if since_s >= self._cut_s:
            self._waits += 1
            self._waited_s += wait_s

    def tick(self, now_s: float, waiting_tokens: int, expected_s: float | None, *, blocked: bool) -> None:
        """The state of the lane now. ``expected_s`` is the wait that its queue stands for, None if not known."""
        if self._opened_s is None:
            self._opened_s = now_s
        self._most = max(self._most, waiting_tokens)
        if blocked:
            self._blocked_s = now_s
        if now_s - self._opened_s < WINDOW_S and self._waits < WINDOW_STARTS:
            return
        known = self._waits > 0 or expected_s is not None
        mean_s = self._waited_s / self._waits if self._waits else 0.0
        self.wait_s = max(mean_s, expected_s or 0.0)
        if self.wait_s >= self._target_s:
            held = self._most if self.tokens is None else min(self.tokens, self._most)
            self.tokens = CUT * held if held else self.tokens
            self._cut_s = now_s
        elif self.tokens is not None and known and self._most >= self.tokens / 2:
            self.tokens += self._probe_tokens
        if now_s - self._blocked_s >= CALM_S:
            self.tokens = None
        self._opened_s, self._most, self._waits, self._waited_s = now_s, waiting_tokens, 0, 0.0
