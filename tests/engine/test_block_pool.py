"""Blocks are neither lost nor handed out twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldplate_engine.block_pool import BlockPool, OutOfBlocks


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60))
def test_blocks_are_conserved(num_blocks: int, actions: list[tuple[bool, int]]) -> None:
    pool = BlockPool(num_blocks, 4)
    held: list[list[int]] = []
    for take, amount in actions:
        if take and amount <= pool.free:
            held.append(pool.take(amount))
        elif take:
            with pytest.raises(OutOfBlocks):
                pool.take(amount)
        elif held:
            pool.give_back(held.pop(amount % len(held)))
        flat = [block for blocks in held for block in blocks]
        assert len(set(flat)) == len(flat) == pool.used
        assert pool.is_whole()


def test_a_block_cannot_be_returned_twice() -> None:
    pool = BlockPool(4, 4)
    blocks = pool.take(2)
    pool.give_back(blocks)
    with pytest.raises(ValueError, match="returned twice"):
        pool.give_back(blocks)
    other = pool.take(1)
    with pytest.raises(ValueError, match="returned twice"):
        pool.give_back([other[0], other[0]])
    assert pool.used == 1
    assert pool.is_whole()


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert BlockPool(4, 16).blocks_for(tokens) == blocks
