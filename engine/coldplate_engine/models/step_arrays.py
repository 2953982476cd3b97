"""A step's batch as the flat arrays the kernels take."""

from array import array
from collections.abc import Sequence

from coldplate_engine.batch import StreamSlice


class StepArrays:
    """The tokens of ``slices`` in their order; every array is alive as long as this object.

    ``slices`` holds four numbers for each: its first row, its rows, its start, and where its block table begins in
    ``blocks``. ``logit_rows`` are the rows whose logits are wanted.
    """

    __slots__ = ("blocks", "logit_rows", "rows", "slice_count", "slices", "tokens")

    def __init__(self, slices: Sequence[StreamSlice], block_size: int) -> None:
        tokens, packed, blocks, logit_rows = array("q"), array("i"), array("i"), array("i")
        row = 0
        for piece in slices:
            count = len(piece.token_ids)
            tokens.extend(piece.token_ids)
            packed.extend((row, count, piece.start, len(blocks)))
            used = (piece.start + count - 1) // block_size + 1
            table = piece.block_table
            blocks.extend(table if len(table) == used else table[:used])
            row += count
            wanted = piece.logit_tokens
            if wanted == 1:
                logit_rows.append(row - 1)
            elif wanted:
                logit_rows.extend(range(row - wanted, row))
        self.tokens, self.slices, self.blocks, self.logit_rows = tokens, packed, blocks, logit_rows
        self.rows, self.slice_count = row, len(slices)
