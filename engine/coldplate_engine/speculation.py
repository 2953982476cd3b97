"""Guesses at the next tokens from what a stream has said before, made only while they pay."""

import math
from dataclasses import dataclass

from coldplate_engine.ngram_index import NgramIndex
from coldplate_engine.stream import Stream

_LEARNING = 0.2  # weight of the newest step in a stream's share of good guesses
_FORGETTING = 0.98  # per step, of measured costs
_FIRST_PAUSE, _LONGEST_PAUSE = 32, 1024  # tokens until guessing is tried again
_FIRST_SHARE = 0.5


class StepCost:
    """What a step without prompts takes: a line through the measured ones, seconds over tokens."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def measured(self, tokens: int, seconds: float) -> None:
        self._n = self._n * _FORGETTING + 1
        self._x = self._x * _FORGETTING + tokens
        self._y = self._y * _FORGETTING + seconds
        self._xx = self._xx * _FORGETTING + tokens * tokens
        self._xy = self._xy * _FORGETTING + tokens * seconds

    def line(self) -> tuple[float, float] | None:
        """Seconds for the step and for each token; None while all steps were alike."""
        spread = self._n * self._xx - self._x * self._x
        if self._n < 2 or spread <= 1e-6 * self._n * self._xx:
            return None
        slope = max(0.0, (self._n * self._xy - self._x * self._y) / spread)
        return max(0.0, (self._y - slope * self._x) / self._n), slope


@dataclass(slots=True)
class Drafting:
    """A stream's guesses: ``share`` of them came true lately; none are made before it has ``pause_until`` tokens."""

    index: NgramIndex
    share: float = _FIRST_SHARE
    pause: int = _FIRST_PAUSE
    pause_until: int = 0


class Speculator:
    """``most`` guesses a step and stream, from matches of ``shortest`` to ``longest`` tokens."""

    def __init__(self, most: int, shortest: int, longest: int) -> None:
        self._most, self._shortest, self._longest = most, shortest, longest
        self.cost = StepCost()

    def guess(self, stream: Stream, batch: int) -> list[int]:
        """What may follow the stream's tokens, for a step of ``batch`` streams; empty when guessing does not pay."""
        if stream.drafting is None:
            stream.drafting = Drafting(NgramIndex(self._shortest, self._longest))
        own = stream.drafting
        if len(stream.tokens) < own.pause_until:
            return []
        count = min(self._most, math.ceil(2 * own.share * self._most))
        if count < 1 or not self._pays(own.share * count, count, batch):
            own.pause_until = len(stream.tokens) + own.pause
            own.pause = min(2 * own.pause, _LONGEST_PAUSE)
            own.share = _FIRST_SHARE
            return []
        return own.index.guess(stream.tokens, count)

    def learn(self, stream: Stream, guessed: int, good: int) -> None:
        own = stream.drafting
        if own is not None and guessed:
            own.share += _LEARNING * (good / guessed - own.share)
            if own.share > _FIRST_SHARE:
                own.pause = _FIRST_PAUSE

    def _pays(self, good: float, count: int, batch: int) -> bool:
        """``good`` tokens more for the price of ``count``: is a token then cheaper than without?"""
        line = self.cost.line()
        if line is None:
            return True
        step, token = line
        return good * (step + token * batch) / batch > token * count
