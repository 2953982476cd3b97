"""What one engine step computes: plain data between the scheduler and a model runner."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class StreamSlice:
    """One stream's part of a step.

    ``token_ids`` go in at positions ``start``, ``start + 1`` …; ``start`` tokens are in the cache already.
    ``block_table`` covers all positions up to the last one. The logits behind the last ``logit_tokens`` tokens are
    needed.
    """

    stream: int
    token_ids: list[int]
    start: int
    block_table: list[int]
    logit_tokens: int


@dataclass(slots=True)
class StepBatch:
    """Decodes (one token each) come first, then prefill chunks."""

    slices: list[StreamSlice] = field(default_factory=list)

    @property
    def token_count(self) -> int:
        return sum(len(piece.token_ids) for piece in self.slices)

    @property
    def logit_rows(self) -> int:
        """Rows of logits: slice by slice, each slice's in the order of its tokens."""
        return sum(piece.logit_tokens for piece in self.slices)
