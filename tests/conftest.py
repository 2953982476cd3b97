"""Set-up for all tests: where checkpoints are built, and the logs of processes beside a failed test."""

import signal
from collections.abc import Generator

import pytest

from support import checkpoints, processes


@pytest.fixture(scope="session", autouse=True)
def _checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    checkpoints.set_root(tmp_path_factory.mktemp("checkpoints"))


def pytest_configure() -> None:
    # A job in the background ignores interrupts, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        used = list(getattr(item, "funcargs", {}).values())
        for process in processes.LIVE:
            if process in used or process.started_at >= call.start:
                report.sections.append((f"log of {process.log_path.name}", process.log_tail()))
    return report
