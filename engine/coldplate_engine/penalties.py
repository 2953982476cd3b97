"""Penalties on tokens that came before, as in transformers (repetition) and the OpenAI API (presence, frequency)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coldplate_engine.messages import Sampling

Row = NDArray[np.float32]


class TokenCounts:
    """Which tokens a stream holds, and how often each is in its output; kept step by step.

    Prompt and output count for repetition, the output alone for presence and frequency.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        known = np.unique(np.asarray(prompt, dtype=np.int64))
        self._ids = known
        self._counts = np.zeros(len(known), dtype=np.float32)
        self._slots = {token: slot for slot, token in enumerate(known.tolist())}
        self._of_prompt = len(known)
        self._seen = len(prompt)

    def advance(self, tokens: Sequence[int]) -> None:
        """``tokens`` are the prompt and all output so far; those that are new since the last call are counted."""
        for at in range(self._seen, len(tokens)):
            self.push(tokens[at])
        self._seen = len(tokens)

    def push(self, token: int) -> None:
        """Count one more output token."""
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self._slots)
            if slot == len(self._ids):
                self._ids = np.resize(self._ids, 2 * slot + 64)
                self._counts = np.resize(self._counts, 2 * slot + 64)
            self._ids[slot], self._counts[slot] = token, 0.0
        self._counts[slot] += 1.0

    def pop(self, token: int) -> None:
        """Undo the last ``push``, which was of ``token``."""
        slot = self._slots[token]
        self._counts[slot] -= 1.0
        if self._counts[slot] == 0 and slot >= self._of_prompt:
            del self._slots[token]  # the newest slot, as pushes are undone in reverse

    def apply(self, row: Row, sampling: Sampling) -> None:
        """Change one row of logits [vocabulary] in place."""
        used = len(self._slots)
        ids, counts = self._ids[:used], self._counts[:used]
        values = row[ids]
        penalty = np.float32(sampling.repetition_penalty)
        if penalty != 1:
            values = np.where(values > 0, values / penalty, values * penalty)
        if sampling.frequency_penalty:
            values -= np.float32(sampling.frequency_penalty) * counts
        if sampling.presence_penalty:
            values -= np.float32(sampling.presence_penalty) * (counts > 0)
        row[ids] = values
