"""What a worker tells while its engine loads."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coldplate_engine import worker
from coldplate_engine.inbox import EXIT_OK, Inbox
from coldplate_engine.runner import ReportProgress
from coldplate_engine.settings import EngineSettings
from coldplate_engine.worker_facts import WorkerFacts
from support.engine_worker import ControlStream


class LoadingEngine:
    """Is told when to get on with loading."""

    LAST_WORDS_S = 1.0
    go_on: threading.Semaphore

    def __init__(
        self, settings: EngineSettings, inbox: Inbox, progress: ReportProgress, on_ready: Callable[[WorkerFacts], None]
    ) -> None:
        self._progress = progress

    def run(self) -> int:
        for share in (0.25, 0.5):
            self._progress("weights", share)
            self.go_on.acquire()
        return EXIT_OK


async def test_progress_is_told_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LoadingEngine.go_on = threading.Semaphore(0)
    monkeypatch.setattr(worker, "_engine_class", lambda settings: LoadingEngine)
    listen = f"unix:{tmp_path / 'engine.sock'}"
    settings = EngineSettings.model_validate({"model": tmp_path, "listen": listen, "served_model_name": "m"})
    serving = asyncio.create_task(worker.Worker(settings).serve())
    async with ControlStream(tmp_path / "engine.sock") as stream:
        for share in (0.25, 0.5):
            while (await stream.loading_event()).progress != share:
                pass
            LoadingEngine.go_on.release()
        assert await serving == EXIT_OK
    assert stream.loading[-2:] == ["weights", "weights"]
