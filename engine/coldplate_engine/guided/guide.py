"""Where one constrained stream stands in its grammar, and which tokens may come next."""

from collections.abc import Sequence
from concurrent.futures import Executor, Future

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

Bits = NDArray[np.uint8]


class ConstraintError(Exception):
    """A constraint that cannot be used or went wrong: one line for the caller."""


class Guide:
    """``prepare`` computes the next masks in ``executor`` while the device runs; ``allowed`` waits for them.

    ``end_ids`` are the tokens that may end the answer once the grammar is satisfied. One thread calls this object.
    """

    def __init__(self, matcher: LLMatcher, end_ids: frozenset[int], executor: Executor) -> None:
        self._matcher = matcher
        self._executor = executor
        self._drafts: tuple[int, ...] = ()
        self._masks: Future[list[Bits]] | None = None
        self.end_ids = end_ids

    @property
    def satisfied(self) -> bool:
        """Whether the answer may end here."""
        self._settle()
        return bool(self._matcher.is_accepting())

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        self._settle()
        return bool(self._matcher.is_stopped())

    def fitting(self, drafts: Sequence[int]) -> int:
        """How many of ``drafts`` the grammar takes, from the first on."""
        self._settle()
        return int(self._matcher.validate_tokens(list(drafts))) if drafts else 0

    def prepare(self, drafts: Sequence[int] = ()) -> None:
        """Begin to compute what may come next, and behind each of ``drafts``, which must fit."""
        self._settle()
        self._drafts = tuple(drafts)
        self._masks = self._executor.submit(_masks, self._matcher, self._drafts)

    def allowed(self, drafts: Sequence[int] = ()) -> Bits:
        """One bit per token, lowest bit first: what may come behind ``drafts``. Raises ConstraintError."""
        drafts = tuple(drafts)
        if self._masks is None or self._drafts[: len(drafts)] != drafts:
            self.prepare(drafts)
        assert self._masks is not None
        return self._masks.result()[len(drafts)]

    def advance(self, token: int) -> None:
        """Take the next token of the answer. Raises ConstraintError when the grammar does not allow it."""
        self._settle()
        self._masks = None
        if not self._matcher.consume_token(token):
            raise ConstraintError(reason(self._matcher))

    def _settle(self) -> None:
        """Wait until nobody else uses the matcher."""
        if self._masks is not None:
            self._masks.exception()


def reason(matcher: LLMatcher) -> str:
    """What went wrong, in a line."""
    lines = [line.strip() for line in str(matcher.get_error()).split("\n")]
    detail = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    first = lines[0] or "no token can follow"
    return f"{first} {detail}"[:300].strip()


def _masks(matcher: LLMatcher, drafts: tuple[int, ...]) -> list[Bits]:
    masks = [_mask(matcher)]
    taken = 0
    for token in drafts:
        if matcher.validate_tokens([token]) != 1 or not matcher.consume_token(token):
            break
        taken += 1
        masks.append(_mask(matcher))
    if taken and not matcher.rollback(taken):
        raise ConstraintError(reason(matcher))
    return masks + [np.zeros_like(masks[0])] * (len(drafts) - taken)


def _mask(matcher: LLMatcher) -> Bits:
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    if matcher.is_error():
        raise ConstraintError(reason(matcher))
    return bits
