"""Keeping a worker's share of computing time at the duty limit."""

_FULL_DUTY = 1.0
_LONGEST_CREDIT_S = 0.02
_SHORTEST_REST_S = 1e-6


class DutyPacer:
    """After ``busy`` seconds of computing at duty ``d`` a worker rests ``busy * (1/d - 1)``.

    The debt is kept in seconds of computing, so a new duty acts on what is still owed at once. A rest that ran over by
    a timer's slack is taken off the next one.
    """

    def __init__(self) -> None:
        self.duty = _FULL_DUTY
        self._owed_busy_s = 0.0

    def worked(self, busy_s: float) -> None:
        if self.duty < _FULL_DUTY:
            self._owed_busy_s += busy_s

    def rested(self, seconds: float) -> None:
        """Time in which nothing was computed, for whatever reason."""
        factor = self._rest_per_busy_s()
        if factor > 0:
            self._owed_busy_s = max(self._owed_busy_s - seconds / factor, -_LONGEST_CREDIT_S / factor)

    def set_duty(self, duty: float | None) -> None:
        self.duty = _FULL_DUTY if duty is None else duty
        if self.duty >= _FULL_DUTY:
            self._owed_busy_s = 0.0

    def rest_s(self) -> float:
        """How long to rest before the next step."""
        rest_s = self._owed_busy_s * self._rest_per_busy_s()
        return rest_s if rest_s >= _SHORTEST_REST_S else 0.0

    def _rest_per_busy_s(self) -> float:
        return 1.0 / self.duty - 1.0
