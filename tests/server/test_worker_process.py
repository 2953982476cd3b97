"""A spawned worker: what is started again and what is not, and how it is ended."""

import asyncio
import contextlib
import resource
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil

from coldplate.clock import MonotonicClock
from coldplate_server.workers.process import WorkerProcess
from support.processes import until

UNUSABLE = "import sys; print('nothing works', file=sys.stderr); sys.exit(2)"
FAR_FROM_SOON_S = 15


class Running:
    """A worker process kept by a task, and the news of it."""

    def __init__(self, script: str, has_served: bool = False) -> None:
        self.news = asyncio.Event()
        command = [sys.executable, "-c", script]
        self.process = WorkerProcess("worker-0", command, MonotonicClock(), self.news.set, lambda: has_served)
        self.task = asyncio.create_task(self.process.run())

    async def until(self, condition: Callable[[], bool]) -> None:
        await asyncio.to_thread(until, "the worker's turn", condition, FAR_FROM_SOON_S)


@contextlib.asynccontextmanager
async def running(script: str, has_served: bool = False) -> AsyncIterator[Running]:
    made = Running(script, has_served)
    try:
        yield made
    finally:
        made.task.cancel()
        await asyncio.wait([made.task])


async def test_a_worker_that_never_served_and_is_unusable_is_not_started_again() -> None:
    async with running(UNUSABLE) as worker:
        await worker.until(worker.task.done)
        assert worker.process.failure == "nothing works"
        assert worker.process.restarts == 0


async def test_a_worker_that_served_is_started_again_even_when_it_says_it_is_unusable() -> None:
    async with running(UNUSABLE, has_served=True) as worker:
        await worker.until(lambda: worker.process.restarts == 1)
        assert worker.process.failure is None
        assert worker.process.last_exit == "exit code 2: nothing works"


async def test_a_program_that_is_not_there_is_not_tried_again() -> None:
    worker = WorkerProcess("worker-0", ["/nowhere/engine"], MonotonicClock(), lambda: None, lambda: True)
    await worker.run()
    assert worker.failure is not None
    assert "/nowhere/engine" in worker.failure


async def test_a_start_that_fails_for_want_of_descriptors_is_tried_again() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 1, hard))
    try:
        async with running("import time; time.sleep(60)") as worker:
            await worker.until(lambda: worker.process.last_exit is not None)
            assert worker.process.failure is None
            assert "Too many open files" in (worker.process.last_exit or "")
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await worker.until(lambda: worker.process.pid is not None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_worker_is_asked_to_end_and_what_it_started_is_ended_with_it(tmp_path: Path) -> None:
    said = tmp_path / "said"
    script = (
        "import signal, subprocess, sys, time, pathlib\n"
        f"said = pathlib.Path({str(said)!r})\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "def end(*_):\n"
        "    time.sleep(1)\n"
        "    said.with_suffix('.end').write_text('ended')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "said.write_text(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    async with running(script) as worker:
        await worker.until(lambda: said.exists() and said.read_text() != "")
        child = psutil.Process(int(said.read_text()))
    assert said.with_suffix(".end").read_text() == "ended"
    assert not psutil.wait_procs([child], 5)[1]
    assert worker.process.pid is None


async def test_a_worker_whose_child_outlives_it_is_known_to_be_dead() -> None:
    script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    async with running(script) as worker:
        await worker.until(lambda: worker.process.restarts == 1)
        assert worker.process.last_exit == "exit code 0"
