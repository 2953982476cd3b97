"""A write that hangs is given up; one that goes on, however often, is not."""

import asyncio

import pytest

from coldplate_server.errors import SlowReader
from coldplate_server.rpc.write_watch import WriteWatch

TIMEOUT_S = 0.1


async def writes(watch: WriteWatch, *pauses_s: float) -> None:
    for pause_s in pauses_s:
        watch.begin()
        await asyncio.sleep(pause_s)
        watch.end()


async def test_a_stuck_write_ends_as_slow_reader() -> None:
    watch = WriteWatch(TIMEOUT_S)
    start = asyncio.get_running_loop().time()
    with pytest.raises(SlowReader, match=r"nothing was read for 0\.1 s"), watch.watching():
        await writes(watch, 0, 30)
    assert asyncio.get_running_loop().time() - start >= TIMEOUT_S
    await asyncio.sleep(0)  # the task itself goes on


async def test_writes_that_are_slow_but_go_on_are_left_alone() -> None:
    watch = WriteWatch(TIMEOUT_S)
    with watch.watching():
        await writes(watch, *[TIMEOUT_S * 0.6] * 5)


async def test_waiting_for_tokens_is_not_a_stuck_write() -> None:
    watch = WriteWatch(TIMEOUT_S)
    with watch.watching():
        await writes(watch, 0)
        await asyncio.sleep(3 * TIMEOUT_S)


async def test_a_cancel_from_elsewhere_stays_a_cancel() -> None:
    watch = WriteWatch(TIMEOUT_S)

    async def watched() -> None:
        with watch.watching():
            await writes(watch, 30)

    task = asyncio.create_task(watched())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
