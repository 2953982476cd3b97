"""The page between a vLLM worker and its engine cores."""

import multiprocessing
import os
from dataclasses import replace

import pytest

from coldplate_engine.vllm_worker.board import Board, CoreLimits, CoreState


def test_limits_and_states_come_over_as_they_were_written() -> None:
    board = Board.create()
    seen = Board.attach(board.address)
    assert seen.limits() == CoreLimits()
    limits = CoreLimits(7, 0.25, 3, 0)
    board.set_limits(limits)
    assert seen.limits() == limits
    state = CoreState(limits_seq=7, added=2, blocks_total=9, paced_s=1.5)
    seen.set_state(0, state)
    seen.set_state(15, replace(state, added=5))
    assert board.state(0) == state
    assert board.state(15) == replace(state, added=5)


def test_a_core_that_has_not_reported_has_no_state() -> None:
    assert Board.create().state(0) is None


def _write_for_ever(address: str) -> None:
    board = Board.attach(address)
    count = 0
    while os.getppid() > 1:
        count += 1
        board.set_state(0, CoreState(added=count, live=count, steps=count, idle_s=count))


def test_a_reader_never_takes_a_half_written_record() -> None:
    board = Board.create()
    writer = multiprocessing.get_context("spawn").Process(target=_write_for_ever, args=(board.address,), daemon=True)
    writer.start()
    try:
        read: list[CoreState] = []
        while len(read) < 2000:
            if (state := board.state(0)) is not None:
                read.append(state)
        assert all(state.added == state.live == state.steps == state.idle_s for state in read)
        assert read[-1].added > read[0].added
    finally:
        writer.kill()
        writer.join()


@pytest.mark.parametrize(("whole", "count"), [(7, 3), (1, 2), (0, 4), (None, 2)])
def test_parts_of_a_group_are_never_more_than_the_whole(whole: int | None, count: int) -> None:
    limits = CoreLimits(1, 0.5, whole, whole)
    parts = [limits.part(index, count) for index in range(count)]
    assert all(part.duty == 0.5 for part in parts)
    if whole is None:
        assert all(part.max_batch is None for part in parts)
    else:
        assert sum(part.max_batch or 0 for part in parts) == whole
        assert max(part.max_batch or 0 for part in parts) <= -(-whole // count)
